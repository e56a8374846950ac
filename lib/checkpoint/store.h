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

  FileSystem& files() const { return files_; }
  const std::filesystem::path& root() const { return root_; }

 private:
  FileSystem& files_;
  std::filesystem::path root_;
};

}  // namespace meshard
