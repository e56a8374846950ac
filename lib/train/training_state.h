#pragma once
// Everything that a resumed run needs besides its config, under the keys that Python's get_model_state_dict and
// get_optimizer_state_dict use. dcp/FORMAT.md section 4.

#include "checkpoint/sharded_state.h"
#include "config/config.h"
#include "optim/optimizer.h"

namespace meshard {

/// Local. The model's weights and persistent buffers; the optimizer's state, views of its own tensors; and its
/// parameter groups as PyTorch knows them. The optimizer must have been allocated.
StateDict training_state(const ShardingRuntime& runtime, const Optimizer& optimizer, const Config& config, double lr);

/// Local. The optimizer's step count as a loaded state has it: reading fills the tensors that training_state() made.
/// IoError, beginning with `where`, if its parameters disagree, or one is no count.
std::int64_t optimizer_steps(const StateDict& state, const std::string& where);

}  // namespace meshard
