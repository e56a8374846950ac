#include "plan/activations.h"

#include <algorithm>

#include "model/options.h"
#include "nn/cross_entropy.h"

namespace meshard {

std::int64_t activation_bytes(const Config& config) {
  auto& model = config.model;
  auto element = static_cast<std::int64_t>(at::elementSize(scalar_type(config.precision.param)));
  auto tokens = config.train.micro_batch_size * config.train.seq_len;
  auto hidden = model.hidden_size * element;
  auto query = model.num_attention_heads * model.head_dim * element;
  auto key = model.num_key_value_heads * model.head_dim * element;
  auto wide = model.intermediate_size * element;

  // Two residual streams and their normed copies; q, k, v and the mixed values; fp32 statistics.
  auto attention = 4 * hidden + 2 * query + 2 * key + 4 * (model.num_attention_heads + 2);
  if (model.use_qk_norm) attention += query + key;
  auto dense = 2 * wide;  // gate and up
  auto temporaries = 3 * wide + 4 * hidden + 2 * (query + 2 * key);
  std::int64_t moe_layers = 0, sparse = 0;
  if (model.moe) {
    auto& moe = *model.moe;
    moe_layers = model.num_hidden_layers - moe.first_k_dense_replace;
    auto width = moe.moe_intermediate_size * element;
    // Rows to the experts and back, gate and up of both kinds of expert; logits, scores and what is made of them.
    sparse = moe.num_experts_per_tok * 2 * (hidden + width) + 2 * moe.n_shared_experts * width +
             4 * 4 * (moe.n_routed_experts + moe.num_experts_per_tok);
    temporaries = std::max(temporaries, moe.num_experts_per_tok * (3 * width + 2 * hidden) + 4 * hidden);
  }
  auto kept =
      model.num_hidden_layers * attention + (model.num_hidden_layers - moe_layers) * dense + moe_layers * sparse;
  bool recompute = config.train.activation_checkpoint == TrainConfig::Checkpointing::Full;
  auto layers = recompute ? model.num_hidden_layers * hidden + attention + std::max(dense, sparse) : kept;
  auto slice = std::min(tokens, logit_slice_rows(model.vocab_size)) * model.vocab_size * (4 + element);
  return tokens * (layers + temporaries + 4 * hidden) + slice;
}

}  // namespace meshard
