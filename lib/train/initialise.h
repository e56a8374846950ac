#pragma once
// First weights, the same on any mesh. sharding/DESIGN.md sections 6 and 7.

#include "nn/causal_lm.h"
#include "sharding/runtime.h"

namespace meshard {

/// Collective over the axes of the refresh. Every rank fills the elements of the main weights that it owns, with no
/// communication, then model weights are made from them.
void initialise_sharded(ShardingRuntime& runtime, std::uint64_t seed);

/// Local. The same values into the real tensors of a model that is not sharded yet.
void initialise_whole(Module& model, std::uint64_t seed);

}  // namespace meshard
