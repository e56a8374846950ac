#include "nn/init.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <numbers>

#include "nn/kernel_dispatch.h"

namespace meshard {

namespace {

constexpr std::uint32_t low(std::uint64_t x) {
  return static_cast<std::uint32_t>(x);
}
constexpr std::uint32_t high(std::uint64_t x) {
  return static_cast<std::uint32_t>(x >> 32);
}

double uniform(std::uint32_t x) {
  return (static_cast<double>(x) + 0.5) * 0x1p-32;
}

/// Four standard normals: elements 4 * block to 4 * block + 3.
std::array<double, 4> normal_block(std::uint64_t seed, std::uint64_t fqn_hash, std::uint64_t block) {
  auto x = philox4x32_10({low(block), high(block), low(fqn_hash), high(fqn_hash)}, {low(seed), high(seed)});
  std::array<double, 4> normals;
  for (int lane = 0; lane < 4; lane += 2) {
    const double radius = std::sqrt(-2.0 * std::log(uniform(x[lane])));
    const double angle = 2.0 * std::numbers::pi * uniform(x[lane + 1]);
    normals[lane] = radius * std::cos(angle);
    normals[lane + 1] = radius * std::sin(angle);
  }
  return normals;
}

template <class T>
void fill_normal(T* to, double std, std::uint64_t seed, std::uint64_t fqn_hash, std::int64_t begin, std::int64_t end) {
  for (auto i = begin; i < end;) {
    auto normals = normal_block(seed, fqn_hash, static_cast<std::uint64_t>(i / 4));
    for (auto lane = i % 4; lane < 4 && i < end; ++lane, ++i) *to++ = static_cast<float>(std * normals[lane]);
  }
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {high(b) ^ counter[1] ^ key[0], low(b), high(a) ^ counter[3] ^ key[1], low(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

void fill_initial(at::Tensor rows_flat, const Init& init, std::uint64_t seed, std::uint64_t fqn_hash,
                  std::int64_t begin) {
  if (rows_flat.dim() != 1 || !rows_flat.is_contiguous() || !rows_flat.is_cpu()) {
    throw ShapeError("fill_initial needs a 1-D contiguous tensor in host memory");
  }
  dispatch_kernel(rows_flat, "fill_initial", [&]<class T>() {
    auto* to = rows_flat.mutable_data_ptr<T>();
    at::parallel_for(0, rows_flat.numel(), kParallelGrain, [&](std::int64_t first, std::int64_t last) {
      switch (init.kind) {
        case Init::Kind::Constant:
          std::fill(to + first, to + last, static_cast<T>(static_cast<float>(init.value)));
          break;
        case Init::Kind::Normal:
          fill_normal(to + first, init.value, seed, fqn_hash, begin + first, begin + last);
          break;
      }
    });
  });
}

}  // namespace meshard
