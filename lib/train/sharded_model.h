#pragma once

#include <memory>

#include "mesh/mesh.h"
#include "model/build.h"

namespace meshard {

/// A model and its sharding. The runtime refers to the model, so it goes first.
struct ShardedModel {
  Model model;
  std::unique_ptr<ShardingRuntime> runtime;
};

/// Local. The config's model, sharded over the mesh; without weights, unless init.device is cpu: then with first ones.
ShardedModel shard_model(const Config& config, Mesh& mesh);

}  // namespace meshard
