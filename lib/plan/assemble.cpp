#include "plan/assemble.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshard {

void require_supported(const Config& config) {
  auto refuse = [](const std::string& key, const std::string& what) {
    throw ConfigError(fmt::format("config error: {}: {}", key, what));
  };
  if (config.model.moe) refuse("model.moe", "this version trains dense models only; remove the section");
  if (config.regression.fault != "none")
    refuse("regression.fault", "faults need mixture-of-experts layers, which this version lacks; use none");
  if (config.regression.record_routing || config.regression.replay_routing) {
    refuse("regression", "there is no routing to record or replay without mixture-of-experts layers");
  }
}

MeshShape mesh_shape(const Config& config, int ranks) {
  return MeshShape(ranks, config.parallel.dp_outer, config.parallel.dp_shard, config.parallel.expert);
}

at::ScalarType scalar_type(Dtype dtype) {
  return dtype == Dtype::Bf16 ? at::kBFloat16 : at::kFloat;
}

DecoderConfig decoder_config(const Config& config) {
  auto& model = config.model;
  DecoderConfig decoder;
  decoder.vocab_size = model.vocab_size;
  decoder.hidden_size = model.hidden_size;
  decoder.num_hidden_layers = model.num_hidden_layers;
  decoder.num_attention_heads = model.num_attention_heads;
  decoder.num_key_value_heads = model.num_key_value_heads;
  decoder.head_dim = model.head_dim;
  decoder.intermediate_size = model.intermediate_size;
  decoder.max_position_embeddings = model.max_position_embeddings;
  decoder.rope_theta = model.rope_theta;
  decoder.rms_norm_eps = model.rms_norm_eps;
  decoder.partial_rotary_factor = model.partial_rotary_factor;
  decoder.initializer_range = model.initializer_range;
  decoder.use_qk_norm = model.use_qk_norm;
  decoder.attention_bias = model.attention_bias;
  decoder.tie_word_embeddings = model.tie_word_embeddings;
  decoder.recompute = config.train.activation_checkpoint == TrainConfig::Checkpointing::Full;
  return decoder;
}

std::unique_ptr<CausalLM> build_model(const Config& config, at::Device device) {
  // Real tensors are the main weights to be: rounding them to precision.param first would lose what meta keeps.
  auto dtype = device.is_meta() ? config.precision.param : config.precision.main_param;
  return std::make_unique<CausalLM>(decoder_config(config),
                                    at::TensorOptions().device(device).dtype(scalar_type(dtype)));
}

ShardOptions shard_options(const Config& config) {
  ShardOptions options;
  options.strategy = config.parallel.strategy;
  options.precision = {scalar_type(config.precision.param), scalar_type(config.precision.main_param),
                       scalar_type(config.precision.main_grad), scalar_type(config.precision.reduce)};
  return options;
}

std::vector<Module*> unit_modules(CausalLM& model) {
  auto modules = model.layers();
  modules.push_back(&model);
  return modules;
}

}  // namespace meshard
