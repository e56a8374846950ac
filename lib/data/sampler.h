#pragma once
// The order of training samples: one global sequence of positions 0, 1, 2, ... that no mesh, batch size or restart
// changes. Position p lies in epoch p / samples, and each epoch visits every sample once in its own random order. The
// number of samples consumed is therefore the only state there is to save.
//
// Nothing is stored: the order of an epoch is a Feistel network keyed by (seed, epoch) on the smallest power of two
// that holds the samples, walked until it lands on a sample (Black and Rogaway, Ciphers with Arbitrary Finite Domains,
// 2002). It is part of what makes a run repeatable: the order must never change between versions.

#include <cstdint>

namespace meshard {

class Sampler {
 public:
  /// Local. Throws ArgumentError for samples < 1.
  Sampler(std::uint64_t seed, std::int64_t samples);

  /// Local. The sample at a global position. Throws ArgumentError for position < 0.
  std::int64_t sample(std::int64_t position) const;

 private:
  std::uint64_t permute(std::uint64_t key, std::uint64_t index) const;

  std::uint64_t seed_;
  std::uint64_t samples_;
  int left_bits_;
  int right_bits_;
};

/// Local. The position of sample `j` of microbatch `microbatch` on rank `rank` of `ranks`, in a step whose global batch
/// begins at position `first` (the samples consumed so far). Over all ranks and microbatches of a step, the positions
/// are [first, first + global batch), each once.
constexpr std::int64_t sample_position(std::int64_t first, std::int64_t microbatch, std::int64_t rank,
                                       std::int64_t ranks, std::int64_t micro_batch_size, std::int64_t j) {
  return first + (microbatch * ranks + rank) * micro_batch_size + j;
}

}  // namespace meshard
