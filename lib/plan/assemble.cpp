#include "plan/assemble.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshard {

MeshShape mesh_shape(const Config& config, int ranks) {
  return MeshShape(ranks, config.parallel.dp_outer, config.parallel.dp_shard, config.parallel.expert);
}

at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::Fp32:
      return at::kFloat;
    case Dtype::Bf16:
      return at::kBFloat16;
  }
  throw LogicError("unknown dtype");
}

namespace {

MoeOptions::Scoring scoring_of(MoeConfig::Scoring scoring) {
  switch (scoring) {
    case MoeConfig::Scoring::Sigmoid:
      return MoeOptions::Scoring::Sigmoid;
    case MoeConfig::Scoring::Softmax:
      return MoeOptions::Scoring::Softmax;
  }
  throw LogicError("unknown scoring function");
}

MoeOptions::AuxLoss aux_loss_of(AuxLossConfig::Type type) {
  switch (type) {
    case AuxLossConfig::Type::None:
      return MoeOptions::AuxLoss::None;
    case AuxLossConfig::Type::Switch:
      return MoeOptions::AuxLoss::Switch;
    case AuxLossConfig::Type::Sequence:
      return MoeOptions::AuxLoss::Sequence;
  }
  throw LogicError("unknown auxiliary loss");
}

}  // namespace

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
  bool glm = model.moe && model.moe->scoring_func == MoeConfig::Scoring::Sigmoid;
  decoder.attention_output_bias = model.attention_bias && !glm;
  decoder.tie_word_embeddings = model.tie_word_embeddings;
  decoder.recompute = config.train.activation_checkpoint == TrainConfig::Checkpointing::Full;
  return decoder;
}

MoeOptions moe_options(const Config& config) {
  auto& moe = *config.model.moe;
  MoeOptions options;
  options.hidden_size = config.model.hidden_size;
  options.moe_intermediate_size = moe.moe_intermediate_size;
  options.n_routed_experts = moe.n_routed_experts;
  options.num_experts_per_tok = moe.num_experts_per_tok;
  options.n_shared_experts = moe.n_shared_experts;
  options.scoring = scoring_of(moe.scoring_func);
  options.n_group = moe.n_group;
  options.topk_group = moe.topk_group;
  options.norm_topk_prob = moe.norm_topk_prob;
  options.routed_scaling_factor = moe.routed_scaling_factor;
  options.initializer_range = config.model.initializer_range;
  options.expert_bias = moe.expert_bias.enabled;
  options.bias_update_rate = moe.expert_bias.update_rate;
  options.bias_recenter = moe.expert_bias.recenter;
  options.bias_initial = moe.expert_bias.initial;
  options.aux_loss = aux_loss_of(moe.aux_loss.type);
  options.aux_loss_coeff = moe.aux_loss.coeff;
  options.z_loss_coeff = moe.z_loss_coeff;
  options.capacity_factor = moe.capacity_factor;
  options.fault = fault_of(config.regression.fault);
  return options;
}

Model build_model(const Config& config, at::Device device, const ExpertParallel& parallel) {
  // Real tensors are the main weights to be: rounding them to precision.param first would lose what meta keeps.
  auto dtype = device.is_meta() ? config.precision.param : config.precision.main_param;
  Model model;
  FeedForwardFactory feed_forward;
  if (config.model.moe) {
    model.moe = std::make_unique<MoeLayers>(moe_options(config), config.model.moe->first_k_dense_replace, parallel);
    feed_forward = [&layers = *model.moe](std::int64_t layer, const at::TensorOptions& options) {
      return layers.make(layer, options);
    };
  }
  model.lm = std::make_unique<CausalLM>(decoder_config(config),
                                        at::TensorOptions().device(device).dtype(scalar_type(dtype)), feed_forward);
  return model;
}

std::vector<ModelUnit> model_units(const Model& model) {
  std::vector<ModelUnit> units;
  auto next_moe = model.moe ? model.moe->list().begin() : std::vector<MoeLayer*>::const_iterator{};
  auto& layers = model.lm->layers();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    bool has_experts = model.moe && next_moe != model.moe->list().end() && (*next_moe)->layer() == static_cast<int>(i);
    if (has_experts) units.push_back({&(*next_moe++)->experts(), true});
    units.push_back({layers[i], false});
  }
  units.push_back({model.lm.get(), false});
  return units;
}

ShardOptions shard_options(const Config& config, const ModelUnit& unit) {
  ShardOptions options;
  options.strategy = config.parallel.strategy;
  options.precision = {scalar_type(config.precision.param), scalar_type(config.precision.main_param),
                       scalar_type(config.precision.main_grad), scalar_type(config.precision.reduce)};
  options.experts = unit.routed_experts && config.parallel.expert > 1;
  bool unscaled = fault_of(config.regression.fault) == Fault::ExpertGradUnscaled;
  if (options.experts && !unscaled) options.grad_divisor = config.parallel.expert;
  return options;
}

}  // namespace meshard
