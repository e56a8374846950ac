#pragma once
// Configs of models that are small enough for sums by hand, for tests of what follows from a config.

#include "config/config.h"

namespace meshard::test {

inline constexpr auto kDense = R"(
schema: 1
model:
  {vocab_size: 64, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 2,
   intermediate_size: 32, tie_word_embeddings: false}
train: {steps: 10, global_batch_size: 4, micro_batch_size: 1, seq_len: 8}
optimizer: {lr: 1.0}
lr_schedule: {warmup_steps: 0, min_lr: 0.0}
data: {type: synthetic}
)";

inline constexpr auto kExperts = R"(
schema: 1
model:
  {vocab_size: 64, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 32,
   moe: {n_routed_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 8}}
train: {steps: 10, global_batch_size: 4, micro_batch_size: 1, seq_len: 8}
data: {type: synthetic}
)";

inline Config config_with(std::vector<std::string> overrides, const char* text = kDense) {
  return parse_config(text, "test.yaml", std::move(overrides), 4);
}

}  // namespace meshard::test
