#include "plan/activations.h"

#include <algorithm>

#include "nn/cross_entropy.h"

namespace meshard {

std::int64_t activation_bytes(const Config& config) {
  auto& model = config.model;
  std::int64_t element = config.precision.param == Dtype::Bf16 ? 2 : 4;
  auto tokens = config.train.micro_batch_size * config.train.seq_len;
  auto hidden = model.hidden_size * element;
  auto query = model.num_attention_heads * model.head_dim * element;
  auto key = model.num_key_value_heads * model.head_dim * element;
  auto wide = model.intermediate_size * element;

  // Two residual streams and their normed copies; q, k, v and the mixed values; gate and up; fp32 statistics.
  auto layer = 4 * hidden + 2 * query + 2 * key + 2 * wide + 4 * (model.num_attention_heads + 2);
  if (model.use_qk_norm) layer += query + key;
  auto temporaries = 3 * wide + 4 * hidden + 2 * (query + 2 * key);
  bool recompute = config.train.activation_checkpoint == TrainConfig::Checkpointing::Full;
  auto layers = recompute ? model.num_hidden_layers * hidden + layer : model.num_hidden_layers * layer;
  auto slice = std::min(tokens, logit_slice_rows(model.vocab_size)) * model.vocab_size * (4 + element);
  return tokens * (layers + temporaries + 4 * hidden) + slice;
}

}  // namespace meshard
