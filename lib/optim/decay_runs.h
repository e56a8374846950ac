#pragma once
// How a shard's runs reach an elementwise fused kernel. Private to this room.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "sharding/flat_shard.h"

namespace meshard {

/// columns[k][i]: the i-th piece of tensor k. The pieces with the same i belong together.
using Columns = std::vector<std::vector<at::Tensor>>;

/// Local. Calls update(decay, columns) once for each decay class that has elements. The columns cover exactly the
/// class's runs in `tensors`, which are as long as the shard; tensors[0] is only read (the gradient), the others may be
/// written.
///
/// On the CPU the kernels compute the last, incomplete vector of a tensor with scalar code that rounds differently.
/// Such ends of runs are therefore copied into one padded tensor, updated there and copied back: the result of an
/// element is then the same, bitwise, wherever a shard boundary falls. Runs of whole vectors (64 bytes) cost nothing
/// extra.
void update_runs(const FlatShard& shard, const std::vector<at::Tensor>& tensors,
                 const std::function<void(bool decay, const Columns& columns)>& update);

}  // namespace meshard
