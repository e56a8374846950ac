#pragma once
// Models of every class that there is in Hugging Face's, small enough to list.

#include "model/options.h"

namespace meshard::test {

inline ModelOptions tiny_llama() {
  ModelOptions model;
  auto& decoder = model.decoder;
  decoder.vocab_size = 20;
  decoder.hidden_size = 8;
  decoder.num_hidden_layers = 3;
  decoder.num_attention_heads = 2;
  decoder.num_key_value_heads = 1;
  decoder.head_dim = 6;
  decoder.intermediate_size = 10;
  decoder.max_position_embeddings = 32;
  return model;
}

inline ModelOptions with_experts(ModelOptions model, MoeOptions::Scoring scoring) {
  auto& moe = model.moe.emplace();
  moe.hidden_size = model.decoder.hidden_size;
  moe.moe_intermediate_size = 4;
  moe.n_routed_experts = 4;
  moe.num_experts_per_tok = 2;
  moe.scoring = scoring;
  moe.expert_bias.enabled = scoring == MoeOptions::Scoring::Sigmoid;
  model.first_k_dense_replace = 1;
  model.family = scoring == MoeOptions::Scoring::Sigmoid ? ModelFamily::Glm4Moe : ModelFamily::Qwen3Moe;
  return model;
}

/// Shared experts, half of each head rotated.
inline ModelOptions tiny_glm() {
  auto model = with_experts(tiny_llama(), MoeOptions::Scoring::Sigmoid);
  model.moe->n_shared_experts = 2;
  model.decoder.head_dim = 8;
  model.decoder.partial_rotary_factor = 0.5;
  return model;
}

inline ModelOptions tiny_qwen() {
  auto model = tiny_llama();
  model.decoder.use_qk_norm = true;
  model.family = ModelFamily::Qwen3;
  return model;
}

inline ModelOptions tiny_qwen_moe() {
  return with_experts(tiny_qwen(), MoeOptions::Scoring::Softmax);
}

inline ModelOptions with_attention_bias(ModelOptions model) {
  model.decoder.attention_bias = true;
  model.decoder.attention_output_bias = !model.moe || model.moe->scoring == MoeOptions::Scoring::Softmax;
  return model;
}

inline ModelOptions tied(ModelOptions model) {
  model.decoder.tie_word_embeddings = true;
  return model;
}

}  // namespace meshard::test
