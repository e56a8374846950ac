#pragma once
// Which checkpoints of a run stay.

#include <cstdint>
#include <optional>

#include "checkpoint/store.h"

namespace meshard {

/// Local, for rank 0, after a commit. Removes all but the newest `keep_last` and, with `keep_every`, the steps that it
/// divides. A folder becomes a `.partial` one first, then loses its `.metadata`, so that a half-removed one is never
/// taken for complete. ArgumentError for a number below 1.
void retain(const CheckpointStore& store, std::int64_t keep_last, std::optional<std::int64_t> keep_every);

}  // namespace meshard
