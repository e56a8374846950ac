#pragma once
// A sharded model as a state dict: layout arithmetic, no communication, no copies. dcp/FORMAT.md sections 4 and 5.

#include <functional>

#include "checkpoint/state_dict.h"
#include "sharding/runtime.h"

namespace meshard {

/// Local. The path of a parameter's tensor, by its FQN: ("model", FQN).
using PathOf = std::function<std::vector<PathElement>(const std::string& fqn)>;

/// Local. The tensors of one group, as views of `flat`, which is laid out and placed like the group's main weights
/// (they themselves, or a tensor of optimizer state): one per parameter, under its first FQN; with `every_name` a tied
/// one under each of its FQNs. Shapes and boxes are those of Slot::part.
std::vector<StateTensor> group_tensors(const ParamGroup& group, const Mesh& mesh, const at::Tensor& flat,
                                       const PathOf& path, bool every_name);

/// Local. ("model", FQN): main weights of every parameter under each of its names, and every persistent buffer.
StateDict model_state(const ShardingRuntime& runtime);

}  // namespace meshard
