#pragma once
// What an optimizer sees of one parameter group: this rank's shard of the main weights and of their gradient. Local
// data: nothing here communicates.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// Elements [begin, end) of a flat shard, all of one decay class. Padding and gaps belong to no run.
struct DecayRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool decay = true;
};

struct FlatShard {
  std::string name;            ///< ParamGroup::name(), unique in the model: "model.layers.0[fp32]"
  at::Tensor weight;           ///< main weights, 1-D
  at::Tensor grad;             ///< 1-D, same numel and dtype; undefined if nothing was accumulated
  std::vector<DecayRun> runs;  ///< ascending; possibly empty (this rank owns nothing of the group)
};

}  // namespace meshard
