#pragma once
// How the points of a sweep stand, and tables of them.

#include <optional>
#include <string>
#include <vector>

#include "base/folder_lock.h"
#include "runs/state.h"
#include "sweep/check.h"

namespace meshard {

struct PointStatus {
  RunState run;
  std::optional<FolderLock::Holder> holder;  ///< who works in its folder
  std::optional<FolderLock::Holder> gone;    ///< who left a lock there, as its batch job was killed
  std::optional<std::string> array_job;      ///< "slurm 1234" if that has yet to run it, or runs it
  std::string problem;                       ///< its metrics cannot be read

  bool done() const { return run.phase == RunPhase::Done; }
  /// Neither done nor in anybody's hands.
  bool open() const { return !done() && !holder && !array_job; }
  /// "done", "failed (exit 70)", "running: process 12 on node3", "in slurm 1234".
  std::string text() const;
};

/// Local. Of a point's run folder, without array jobs. Metrics that cannot be read are a failed run's.
PointStatus point_status(const std::filesystem::path& run_folder);

/// Local. What each point changes, needs, and how it stands: for --dry-run.
std::string points_table(const std::vector<CheckedPoint>& points, const std::vector<PointStatus>& statuses);

/// Local. How each point ended: state, exit code, last step of all, starts, run folder.
std::string summary_table(const std::vector<CheckedPoint>& points, const std::vector<PointStatus>& statuses);

}  // namespace meshard
