#pragma once
// The points of a sweep on this machine: under mpirun, with a table of those that run.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sweep/status.h"

namespace meshard {

struct LocalSweep {
  std::filesystem::path folder;   ///< the sweep's
  std::filesystem::path scripts;  ///< the folder jobs/
  std::optional<int> at_a_time;   ///< points; absent: as many as the cores take
};

/// Local. Runs the open points and waits for those that another process of this host runs; `statuses` is brought up to
/// date. Returns whether it was asked to stop.
bool run_points_here(const LocalSweep& sweep, const std::vector<CheckedPoint>& points,
                     std::vector<PointStatus>& statuses);

}  // namespace meshard
