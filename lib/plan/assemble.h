#pragma once
// From the config's words to the terms of the rooms below: one place for each translation, used by `plan` and training.

#include <memory>

#include "config/config.h"
#include "mesh/mesh_shape.h"
#include "moe/moe_layer.h"
#include "nn/causal_lm.h"
#include "sharding/context.h"

namespace meshard {

/// Local.
MeshShape mesh_shape(const Config& config, int ranks);

/// Local.
at::ScalarType scalar_type(Dtype dtype);

/// Local.
DecoderConfig decoder_config(const Config& config);

/// Local. Of a config with model.moe.
MoeOptions moe_options(const Config& config);

/// A model and, with experts, what its MoE layers share.
struct Model {
  std::unique_ptr<MoeLayers> moe;  ///< null: dense
  std::unique_ptr<CausalLM> lm;
};

/// Local. The model on `device`: on meta in precision.param, without memory for weights; real in precision.main_param.
/// It holds the experts of `parallel.rank`.
Model build_model(const Config& config, at::Device device, const ExpertParallel& parallel);

/// A module that becomes a sharding unit.
struct ModelUnit {
  Module* module;
  bool routed_experts;  ///< else it lies on the dense mesh
};

/// Local. In the order of fully_shard: each decoder layer, its experts before it, then the root.
std::vector<ModelUnit> model_units(const Model& model);

/// Local. How a unit is sharded. Routed experts lie on the expert mesh, but with ep == 1 are like any other parameter.
ShardOptions shard_options(const Config& config, const ModelUnit& unit);

}  // namespace meshard
