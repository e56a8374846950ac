#include "model/options.h"

#include "base/error.h"

namespace meshard {

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

DecoderOptions decoder_options(const Config& config) {
  auto& model = config.model;
  DecoderOptions decoder;
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
  decoder.attention_output_bias = model.attention_bias && info_of(family_of(model)).output_bias;
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
  auto& bias = moe.expert_bias;
  options.expert_bias = {bias.enabled, bias.update_rate, bias.recenter, bias.initial};
  options.aux_loss = aux_loss_of(moe.aux_loss.type);
  options.aux_loss_coeff = moe.aux_loss.coeff;
  options.z_loss_coeff = moe.z_loss_coeff;
  options.capacity_factor = moe.capacity_factor;
  options.fault = fault_of(config.regression.fault);
  return options;
}

}  // namespace

ModelOptions model_options(const Config& config) {
  ModelOptions options{family_of(config.model), decoder_options(config), {}, 0};
  if (!config.model.moe) return options;
  options.moe = moe_options(config);
  options.first_k_dense_replace = config.model.moe->first_k_dense_replace;
  return options;
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

}  // namespace meshard
