#pragma once
// The folder of one run: its lock, its files. CONTRACT.md section 4.
//
//   config.yaml    the resolved config; can be run again as it is
//   metrics.jsonl  a line per logged step
//   log.txt        what rank 0 printed
//   checkpoints/   step-00000100/ ...
//   dump/          rings and hang summaries
//   job.json       the batch job that made the folder; not there if none did
//   lock           who is running here: host, pid, start time; removed at the end
//   STOP           made by the user, also before the start, to ask the run to stop; removed when honoured

#include <filesystem>
#include <optional>
#include <string>

#include "base/folder_lock.h"
#include "comm/world/world.h"

namespace meshard {

enum class Resume {
  None,  ///< the folder must be unused
  From,  ///< the same; the run begins from a checkpoint that lies elsewhere
  Auto,  ///< continue what is there, or start
};

class RunFolder {
 public:
  /// Collective over world. Rank 0 makes the folder and takes its lock: waits up to 10 s for another run to leave
  /// (ranks of a killed mpirun live on for some seconds), takes over the lock of a dead process of this host. Throws
  /// ConfigError on every rank, naming the folder and the owner or the reason: locked, used already (and neither
  /// Resume::Auto nor `overwrite`, which removes the run's files first), not writable.
  ///
  /// A batch job may run again with the command of its first start. With `overwrite` it does not empty what it has
  /// made, and with Resume::From it is not refused: see goes_on().
  RunFolder(World& world, std::filesystem::path path, Resume resume, bool overwrite);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Whether an earlier part of this run, or another one, left its metrics here. Rank 0's.
  bool used() const { return used_; }
  /// Whether an earlier start of this batch job made what is here, so that the run goes on from its own newest
  /// checkpoint, although `overwrite` or Resume::From was asked for. On every rank. Slurm counts a job's starts:
  /// another command of the same one is no later start. PBS does not: there any later command of the job is taken for
  /// one.
  bool goes_on() const { return goes_on_; }
  /// Local. The same of a folder that is not open yet, and has a checkpoint. For rank 0.
  static bool has_checkpoint_of_this_job(const std::filesystem::path& path);
  /// Local, for rank 0. Leaves the lines of later steps out of metrics.jsonl, as they will be done again; returns how
  /// many. Does nothing without the file.
  int cut_metrics_after(std::int64_t step);
  std::filesystem::path config() const { return path_ / "config.yaml"; }
  std::filesystem::path job() const { return path_ / "job.json"; }
  std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path log() const { return path_ / "log.txt"; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  std::filesystem::path dump() const { return path_ / "dump"; }
  std::filesystem::path stop() const { return path_ / "STOP"; }

 private:
  void prepare(Resume resume, bool overwrite);

  std::filesystem::path path_;
  bool used_ = false, goes_on_ = false;
  std::optional<FolderLock> lock_;  ///< rank 0's
};

}  // namespace meshard
