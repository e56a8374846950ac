#include "checkpoint/retention.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshard {

void retain(const CheckpointStore& store, std::int64_t keep_last, std::optional<std::int64_t> keep_every) {
  if (keep_last < 1) throw ArgumentError(fmt::format("keep_last must be at least 1, not {}", keep_last));
  if (keep_every && *keep_every < 1)
    throw ArgumentError(fmt::format("keep_every must be at least 1, not {}", *keep_every));
  auto& files = store.files();
  auto steps = store.complete();
  while (static_cast<std::int64_t>(steps.size()) > keep_last) {
    auto step = steps.back();
    steps.pop_back();
    if (keep_every && step % *keep_every == 0) continue;
    // One rename makes it a `.partial` folder, which the next save clears should this process die here.
    auto doomed = store.folder(step) += ".partial";
    files.remove_all(doomed);
    files.rename(store.folder(step), doomed);
    files.sync_folder(store.root());
    files.remove_all(doomed / ".metadata");
    files.remove_all(doomed);
  }
}

}  // namespace meshard
