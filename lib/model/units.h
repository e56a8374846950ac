#pragma once
// Which modules of a model are gathered and released together: the one list that `plan` counts and training shards.

#include <vector>

#include "model/build.h"

namespace meshard {

/// A module that becomes a sharding unit.
struct ModelUnit {
  enum class Kind {
    Layer,          ///< a decoder layer without its routed experts
    RoutedExperts,  ///< of one layer: on the expert mesh where there is one
    Root,           ///< what is left: embedding, last norm, head
  };
  Module* module;
  Kind kind;
};

/// Local. In the order of fully_shard: each decoder layer, its experts before it, then the root.
std::vector<ModelUnit> model_units(const Model& model);

}  // namespace meshard
