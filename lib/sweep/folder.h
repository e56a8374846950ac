#pragma once
// The folder of a sweep. train/CONTRACT.md section 8.
//
//   sweep.json       {schema, file, spec, hash, ranks, points: [{name, ranks, settings}]}
//   points.txt       a point's name per line; line i + 1 is index i of array jobs
//   jobs.txt         "slurm 1234 0-3,7" per array job that was submitted: batch system, id, indices
//   NAME/            run folder of a point
//   NAME/point.yaml  its complete config
//   NAME/job.log     what it printed, where it ran locally
//   lock             while `meshard sweep` works here
//
// Points are only ever added, so names and indices stay.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/folder_lock.h"
#include "sweep/check.h"

namespace meshard {

/// What sweep.json says.
struct SweepRecord {
  std::optional<int> ranks;  ///< that --ranks gave
  nlohmann::ordered_json spec;
  struct Point {
    std::string name;
    int ranks = 1;
    nlohmann::json settings;  ///< {key: value}
  };
  std::vector<Point> points;  ///< by index
};

/// An array job that was submitted.
struct SweepJob {
  std::string system;  ///< "slurm" or "pbs"
  std::string id;
  std::vector<int> indices;
};

/// Local. The record of an earlier start in `folder`; nothing if there is none. Throws ConfigError for a sweep.json
/// that is not one, and for a folder that holds other things.
std::optional<SweepRecord> read_sweep_record(const std::filesystem::path& folder);

/// Local. Orders and names the points of `sweep` as the record has them; new ones come last. Throws ConfigError, naming
/// keys and points, if the record has points that the sweep no longer has.
void adopt_record(Sweep& sweep, const SweepRecord& record, const std::filesystem::path& folder);

/// Local. Throws ConfigError, naming keys and points, if a point's complete config is no longer the one in its
/// NAME/point.yaml: the base has changed, or its number of ranks.
void check_unchanged(const std::vector<CheckedPoint>& points, const std::filesystem::path& folder);

/// Local. "0-3,7" of indices in rising order, and back. Throws IoError for a text that is none.
std::string index_ranges(const std::vector<int>& indices);
std::vector<int> indices_of(const std::string& ranges);

class SweepFolder {
 public:
  /// Local. Makes the folder and takes its lock. Throws ConfigError: another sweep works there (named), or it cannot be
  /// made.
  explicit SweepFolder(std::filesystem::path path);
  /// Local. Gives the lock up, and removes a folder that it made and that stayed empty.
  ~SweepFolder();
  SweepFolder(const SweepFolder&) = delete;
  SweepFolder& operator=(const SweepFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Local. Writes sweep.json, points.txt and each point.yaml that is missing. In that order: what a kill leaves
  /// unwritten the next start writes.
  void write(const Sweep& sweep, const std::vector<CheckedPoint>& points, std::optional<int> ranks) const;

  /// Local. Notes an array job, in jobs.txt.
  void add_job(const SweepJob& job) const;

 private:
  std::filesystem::path path_;
  bool made_ = false;
  std::optional<FolderLock> lock_;
};

/// Local. The lines of jobs.txt. Throws IoError for a damaged one.
std::vector<SweepJob> submitted_jobs(const std::filesystem::path& folder);

}  // namespace meshard
