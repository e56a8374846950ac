#pragma once
// Whether every point of a sweep can run, before any of them does.

#include <cstdint>
#include <optional>
#include <vector>

#include "config/config.h"
#include "sweep/sweep.h"

namespace meshard {

struct SweepLimits {
  std::optional<int> ranks;         ///< of every point; absent: what its mesh says, see below
  std::optional<double> memory_gb;  ///< 10^9 bytes that one rank may need
};

/// A point that can run.
struct CheckedPoint {
  SweepPoint point;
  int ranks = 1;
  Config config;                    ///< complete, for that many ranks
  std::int64_t parameters = 0;      ///< of all ranks together
  std::int64_t bytes_per_rank = 0;  ///< as `meshard plan` counts them
};

/// Local. Loads the base with each point's settings, as `--set` would, and plans it. Without limits.ranks a point has
/// the ranks of its mesh, dp_outer x dp_shard, or 1 where dp_shard is auto. Points of one model and mesh are planned
/// once. Throws ConfigError with the problems of all points, each once, with its place and the points it is of:
/// whatever load_config() refuses, a mesh that the model does not fit, more memory than the limit, a base that is not
/// there.
std::vector<CheckedPoint> check_sweep(const Sweep& sweep, const SweepLimits& limits);

}  // namespace meshard
