#pragma once
// The checkpoints of one run: RUN/checkpoints/step-00000100/. dcp/FORMAT.md section 1.

#include <cstdint>
#include <optional>
#include <vector>

#include "dcp/file_system.h"

namespace meshard {

class CheckpointStore {
 public:
  CheckpointStore(FileSystem& files, std::filesystem::path root) : files_(files), root_(std::move(root)) {}

  /// Local. Where the checkpoint of a step lies or will lie.
  std::filesystem::path folder(std::int64_t step) const;
  /// Local. Steps of complete checkpoints (a folder with a `.metadata`), newest first. `.partial` folders are none.
  std::vector<std::int64_t> complete() const;
  /// Local, for rank 0. Removes `.partial` folders that killed saves left behind.
  void clear_partials();
  /// Local, for rank 0, after a commit. Removes all but the newest `keep_last` and, with `keep_every`, the steps that
  /// it divides. A folder becomes a `.partial` one first, then loses its `.metadata`, so that a half-removed one is
  /// never taken for complete.
  void retain(std::int64_t keep_last, std::optional<std::int64_t> keep_every);

 private:
  FileSystem& files_;
  std::filesystem::path root_;
};

}  // namespace meshard
