#pragma once
// From the config's words to the terms of the rooms below: one place for each translation, used by `plan` and training.

#include <memory>

#include "config/config.h"
#include "mesh/mesh_shape.h"
#include "nn/causal_lm.h"
#include "sharding/context.h"

namespace meshard {

/// Local. Throws ConfigError, naming the key, for what the format knows but this version does not do.
void require_supported(const Config& config);

/// Local.
MeshShape mesh_shape(const Config& config, int ranks);

/// Local.
at::ScalarType scalar_type(Dtype dtype);

/// Local.
DecoderConfig decoder_config(const Config& config);

/// Local. The model on `device`: on meta in precision.param, without memory for weights; real in precision.main_param.
std::unique_ptr<CausalLM> build_model(const Config& config, at::Device device);

/// Local. How every unit of the model is sharded.
ShardOptions shard_options(const Config& config);

/// Local. The modules that become units, in the order of fully_shard: decoder layers, then the root.
std::vector<Module*> unit_modules(CausalLM& model);

}  // namespace meshard
