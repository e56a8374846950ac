#include "nn/causal_lm.h"

#include <fmt/format.h>

#include "base/error.h"
#include "nn/cross_entropy.h"

namespace meshard {

namespace {

const DecoderOptions& checked(const DecoderOptions& options, const at::TensorOptions& tensor_options) {
  auto require = [](bool condition, const std::string& message) {
    if (!condition) throw ArgumentError(message);
  };
  auto dtype = c10::typeMetaToScalarType(tensor_options.dtype());
  require(dtype == at::kFloat || dtype == at::kBFloat16,
          fmt::format("a model of dtype {}: use fp32 or bf16", c10::toString(dtype)));
  require(options.vocab_size > 0 && options.hidden_size > 0 && options.num_hidden_layers > 0 && options.head_dim > 0 &&
              options.intermediate_size > 0 && options.max_position_embeddings > 0,
          "a model needs positive vocab_size, hidden_size, num_hidden_layers, head_dim, intermediate_size and "
          "max_position_embeddings");
  require(options.num_key_value_heads > 0 && options.num_attention_heads > 0 &&
              options.num_attention_heads % options.num_key_value_heads == 0,
          fmt::format("{} attention heads cannot share {} key-value heads evenly", options.num_attention_heads,
                      options.num_key_value_heads));
  return options;
}

}  // namespace

CausalLM::CausalLM(const DecoderOptions& options, const at::TensorOptions& tensor_options,
                   const BlockFactories& factories)
    : tied_(options.tie_word_embeddings),
      model_(checked(options, tensor_options), factories, tensor_options),
      lm_head_(tied_ ? LmHead(model_.embed_tokens().weight())
                     : LmHead(options.hidden_size, options.vocab_size, false, options.initializer_range,
                              tensor_options)) {
  add_child("model", model_);
  add_child("lm_head", lm_head_);
}

at::Tensor LmHead::loss(const at::Tensor& hidden, const at::Tensor& targets, double scale) {
  return invoke(hidden, [&](const at::Tensor& x) { return linear_cross_entropy(x, weight(), targets, scale); });
}

at::Tensor CausalLM::loss(const at::Tensor& ids, const at::Tensor& targets, double scale) {
  return invoke(ids, [&](const at::Tensor& input) { return lm_head_.loss(model_(input), targets, scale); });
}

at::Tensor CausalLM::forward(const at::Tensor& ids) {
  return lm_head_(model_(ids));
}

}  // namespace meshard
