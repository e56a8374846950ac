#pragma once
// Which modules of a model are gathered and released together: the one list that `plan` counts and training shards.

#include <vector>

#include "model/build.h"

namespace meshard {

/// What becomes a sharding unit.
struct ModelUnit {
  enum class Kind {
    Embedding,
    Layer,          ///< a decoder layer without its routed experts
    RoutedExperts,  ///< of one layer: on the expert mesh where there is one
    Head,           ///< the last norm and the head
    Root,           ///< what is left: of a tied model embedding, last norm and head, else nothing
  };
  std::vector<Module*> modules;  ///< that run one after another
  Kind kind;
};

/// Local. In the order of fully_shard: embedding, each decoder layer (its experts before it), head, then the root.
std::vector<ModelUnit> model_units(const Model& model);

}  // namespace meshard
