#pragma once
// Writing a checkpoint: collective, all or nothing. dcp/FORMAT.md sections 1, 5 and 7.

#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/state_dict.h"
#include "comm/world/world.h"
#include "dcp/file_system.h"

namespace meshard {

/// One save, in three parts, so that the middle one may run beside training.
class SaveJob {
 public:
  /// Collective over world. Rank 0 makes `folder`.partial anew. `extra` (rank 0's counts) becomes part of meshard.json.
  /// With `stage`, what this rank writes is copied now and `state` may change at once; without, its tensors must stay
  /// as they are until write() has returned. Throws on every rank if one fails.
  SaveJob(World& world, FileSystem& files, std::filesystem::path folder, StateDict state, nlohmann::ordered_json extra,
          bool stage);
  ~SaveJob();

  /// Local; on any thread, no MPI. Writes and syncs this rank's file. A failure is kept for commit().
  void write() noexcept;

  /// Collective over world (control). Every rank's write() must have returned. Gathers sizes and checksums, proves that
  /// every tensor is tiled exactly once; rank 0 writes meshard.json and then `.metadata`, the commit record, and
  /// renames the folder into place. Throws on every rank, with the reason and rank of the first failure; then the
  /// partial folder is removed and nothing else has changed.
  void commit();

  std::int64_t bytes_written() const;
  const std::filesystem::path& folder() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Saves of one run: synchronous, or on a thread with at most one in flight.
class Saver {
 public:
  Saver(World& world, FileSystem& files, bool async) : world_(world), files_(files), async_(async) {}
  ~Saver();

  /// Collective over world. Waits for a save in flight (and commits it), then saves: async: returns once the copy is
  /// made. Throws as SaveJob does, about this save or the one in flight.
  void save(const std::filesystem::path& folder, StateDict state, nlohmann::ordered_json extra);
  /// Collective over world (control). Commits the save in flight if every rank has written its part. Returns the folder
  /// that became complete, if one did.
  std::optional<std::filesystem::path> poll();
  /// Collective over world. Waits for the save in flight and commits it.
  std::optional<std::filesystem::path> finish();
  bool in_flight() const { return job_ != nullptr; }

 private:
  std::optional<std::filesystem::path> commit();

  World& world_;
  FileSystem& files_;
  bool async_;
  std::unique_ptr<SaveJob> job_;
  std::future<void> writing_;
};

}  // namespace meshard
