#pragma once
// How fast the axes of a mesh are: all-gather and reduce-scatter at a few sizes, within a time and a memory limit.

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/mesh.h"

namespace meshard {

struct BandwidthOptions {
  std::vector<std::int64_t> sizes;      ///< bytes of one rank's shard, ascending, multiples of 4
  double seconds = 8.0;                 ///< for all measurements together
  std::int64_t most_bytes = 1LL << 30;  ///< of one rank's buffers; the smallest of all ranks' counts
};

/// One operation of one axis at one size. All groups of the axis work at the same time, as in training. A time is that
/// of the slowest rank of all, per operation.
struct Bandwidth {
  Axis axis = Axis::World;
  int ranks = 1;                       ///< of a group
  std::string operation;               ///< all_gather or reduce_scatter
  std::int64_t wanted = 0, bytes = 0;  ///< of a rank's shard; fewer than wanted: cut to fit time or memory
  int repetitions = 0;
  double median_seconds = 0.0, min_seconds = 0.0;  ///< over the repetitions

  /// Bytes that one rank sends, (ranks - 1) * bytes, by `seconds`, in 1e9 bytes per second.
  double gb_per_s(double seconds) const;
};

/// Local. Axes of more than one rank, each set of groups once: dp_shard stands for world if dp_outer is 1.
std::vector<Axis> distinct_axes(const MeshShape& shape);

/// Collective over world. fp32 on the world's device. By axis, operation and size; the same numbers on every rank.
/// Sizes that would not fit are cut to a power of two, or left out if no larger than the one before.
std::vector<Bandwidth> measure_bandwidth(const Mesh& mesh, const BandwidthOptions& options);

/// Collective over world. For each of `values` the largest that any rank gave.
std::vector<double> max_over_ranks(World& world, const std::vector<double>& values);

/// Local. Returns once the device has done all that it was given.
void synchronize(at::Device device);

}  // namespace meshard
