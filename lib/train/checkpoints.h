#pragma once
// The checkpoints that a training run writes. dcp/FORMAT.md section 7, CONTRACT.md section 6.

#include <chrono>
#include <string>

#include "base/log.h"
#include "checkpoint/save.h"
#include "checkpoint/store.h"
#include "config/config.h"
#include "optim/optimizer.h"
#include "sharding/runtime.h"
#include "train/data_record.h"

namespace meshard {

/// How far a run is. The data position is samples, as the batch size may change between two parts of a run; tokens are
/// counted, as the length of a sample may, too.
struct Progress {
  std::int64_t step = 0;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
};

/// What checkpoints are made of and loaded into; all of it must outlive them.
struct SavedParts {
  const Config& config;
  ShardingRuntime& runtime;
  Optimizer& optimizer;
  const DataRecord* data = nullptr;  ///< rank 0's counts; null: no data, or not to be recorded and compared
};

class Checkpoints {
 public:
  /// Collective over world. Rank 0 clears what killed saves left behind.
  Checkpoints(World& world, Log& log, FileSystem& files, const std::filesystem::path& root, const SavedParts& parts);

  /// Collective over world. Saves, or with checkpoint.async starts to; a save in flight is finished first. `now`: the
  /// checkpoint is complete on return. Throws on every rank if a save fails (checkpoint.on_error: stop), or logs it and
  /// goes on. Nothing happens if the step's checkpoint is there already.
  void save(const Progress& progress, double lr, bool now = false);
  /// Collective over world (control). Commits a save in flight that every rank has written. Errors as save().
  void poll();
  /// Collective over world. Waits for the save in flight. Errors as save().
  void finish();
  /// Collective over world. As finish(), for a run that an error ends: that a save failed, too, is only logged.
  void settle();

  bool in_flight() const { return saver_.in_flight(); }
  /// Step of the newest complete checkpoint of this run, 0 if none.
  std::int64_t newest() const { return newest_; }
  /// Says that the run began from this step's checkpoint.
  void began_from(std::int64_t step) { newest_ = step; }
  /// Seconds that a stop would wait until its checkpoint is complete: those of the slowest save so far, and what one in
  /// flight may still need. 0 if none was measured.
  double seconds_to_stop() const;
  /// Seconds that training waited for saves since the last call.
  double take_stall();

 private:
  template <class Work>
  void guarded(const Work& work);
  void committed(const std::filesystem::path& folder);

  World& world_;
  Log& log_;
  CheckpointStore store_;
  SavedParts parts_;
  Saver saver_;
  std::chrono::steady_clock::time_point save_begin_;
  double stall_ = 0.0, slowest_save_ = 0.0;
  std::int64_t newest_ = 0, in_flight_ = 0;
};

}  // namespace meshard
