#include "nn/causal_lm.h"

#include <fmt/format.h>

#include "base/error.h"
#include "nn/cross_entropy.h"

namespace meshard {

namespace {

const DecoderConfig& checked(const DecoderConfig& config, const at::TensorOptions& options) {
  auto require = [](bool condition, const std::string& message) {
    if (!condition) throw ArgumentError(message);
  };
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  require(dtype == at::kFloat || dtype == at::kBFloat16,
          fmt::format("a model of dtype {}: use fp32 or bf16", c10::toString(dtype)));
  require(config.vocab_size > 0 && config.hidden_size > 0 && config.num_hidden_layers > 0 && config.head_dim > 0 &&
              config.intermediate_size > 0 && config.max_position_embeddings > 0,
          "a model needs positive vocab_size, hidden_size, num_hidden_layers, head_dim, intermediate_size and "
          "max_position_embeddings");
  require(config.num_key_value_heads > 0 && config.num_attention_heads > 0 &&
              config.num_attention_heads % config.num_key_value_heads == 0,
          fmt::format("{} attention heads cannot share {} key-value heads evenly", config.num_attention_heads,
                      config.num_key_value_heads));
  return config;
}

}  // namespace

CausalLM::CausalLM(const DecoderConfig& config, const at::TensorOptions& options,
                   const FeedForwardFactory& feed_forward)
    : model_(checked(config, options), feed_forward, options),
      lm_head_(config.tie_word_embeddings
                   ? Linear(model_.embedding())
                   : Linear(config.hidden_size, config.vocab_size, false, config.initializer_range, options)) {
  add_child("model", model_);
  add_child("lm_head", lm_head_);
}

at::Tensor CausalLM::loss(const at::Tensor& ids, const at::Tensor& targets, double scale) {
  return invoke(ids, [&](const at::Tensor& input) {
    return linear_cross_entropy(model_(input), lm_head_.weight(), targets, scale);
  });
}

at::Tensor CausalLM::forward(const at::Tensor& ids) {
  return lm_head_(model_(ids));
}

}  // namespace meshard
