#include "data/sampler.h"

#include <fmt/format.h>

#include <bit>

#include "base/error.h"
#include "base/hash.h"

namespace meshard {

namespace {
constexpr int kRounds = 8;

constexpr std::uint64_t low_bits(int bits) {
  return (std::uint64_t{1} << bits) - 1;
}
}  // namespace

Sampler::Sampler(std::uint64_t seed, std::int64_t samples)
    : seed_(seed), samples_(static_cast<std::uint64_t>(samples)) {
  if (samples < 1) throw ArgumentError(fmt::format("a sampler needs at least one sample, not {}", samples));
  int bits = std::bit_width(samples_ - 1);
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
}

std::int64_t Sampler::sample(std::int64_t position) const {
  if (position < 0) throw ArgumentError(fmt::format("sample position {} is negative", position));
  auto epoch = static_cast<std::uint64_t>(position) / samples_;
  auto index = static_cast<std::uint64_t>(position) % samples_;
  auto key = mix64(mix64(seed_) + epoch);
  // The network permutes up to twice as many numbers as there are samples; following its cycle from a sample to the
  // next number that is one is a permutation of the samples.
  do {
    index = permute(key, index);
  } while (index >= samples_);
  return static_cast<std::int64_t>(index);
}

std::uint64_t Sampler::permute(std::uint64_t key, std::uint64_t index) const {
  auto left = index >> right_bits_;
  auto right = index & low_bits(right_bits_);
  for (int round = 0; round < kRounds; round += 2) {
    left ^= mix64(mix64(key + round) ^ right) & low_bits(left_bits_);
    right ^= mix64(mix64(key + round + 1) ^ left) & low_bits(right_bits_);
  }
  return left << right_bits_ | right;
}

}  // namespace meshard
