#include "nn/decoder.h"

#include <ATen/TensorOperators.h>
#include "nn/recompute.h"

namespace meshard {

namespace {

std::unique_ptr<Module> make_attention(const DecoderOptions& options, std::int64_t layer, const RotaryTable& table,
                                       const BlockFactories& factories, const at::TensorOptions& tensor_options) {
  auto made = factories.attention ? factories.attention(layer, table, tensor_options) : nullptr;
  return made ? std::move(made) : std::make_unique<Attention>(options, table, tensor_options);
}

std::unique_ptr<Module> make_feed_forward(const DecoderOptions& options, std::int64_t layer,
                                          const BlockFactories& factories, const at::TensorOptions& tensor_options) {
  auto made = factories.feed_forward ? factories.feed_forward(layer, tensor_options) : nullptr;
  if (made) return made;
  return std::make_unique<Mlp>(options.hidden_size, options.intermediate_size, options.initializer_range,
                               tensor_options);
}

}  // namespace

DecoderBlock::DecoderBlock(const DecoderOptions& options, std::int64_t layer, const RotaryTable& table,
                           const BlockFactories& factories, const at::TensorOptions& tensor_options)
    : recompute_(options.recompute),
      self_attn_(make_attention(options, layer, table, factories, tensor_options)),
      mlp_(make_feed_forward(options, layer, factories, tensor_options)),
      input_layernorm_(options.hidden_size, options.rms_norm_eps, tensor_options),
      post_attention_layernorm_(options.hidden_size, options.rms_norm_eps, tensor_options) {
  add_child("self_attn", *self_attn_);
  add_child("mlp", *mlp_);
  add_child("input_layernorm", input_layernorm_);
  add_child("post_attention_layernorm", post_attention_layernorm_);
}

at::Tensor DecoderBlock::forward(const at::Tensor& input) {
  if (!recompute_) return compute(input);
  return recompute(input, [this](const at::Tensor& x) { return compute(x); });
}

at::Tensor DecoderBlock::compute(const at::Tensor& input) {
  auto before = input_layernorm_.add(input, {});
  auto after = post_attention_layernorm_.add(before.sum, (*self_attn_)(before.normed));
  return after.sum + (*mlp_)(after.normed);
}

DecoderLayers::DecoderLayers(const DecoderOptions& options, const RotaryTable& table, const BlockFactories& factories,
                             const at::TensorOptions& tensor_options) {
  for (std::int64_t i = 0; i < options.num_hidden_layers; ++i) {
    blocks_.push_back(std::make_unique<DecoderBlock>(options, i, table, factories, tensor_options));
    list_.push_back(blocks_.back().get());
    add_child(std::to_string(i), *blocks_.back());
  }
}

at::Tensor DecoderLayers::forward(const at::Tensor& input) {
  auto x = input;
  for (auto& block : blocks_) x = (*block)(x);
  return x;
}

Decoder::Decoder(const DecoderOptions& options, const BlockFactories& factories,
                 const at::TensorOptions& tensor_options)
    : rotary_emb_(options.max_position_embeddings, options.rotary_dim(), options.rope_theta, tensor_options.device()),
      embed_tokens_(options.vocab_size, options.hidden_size, options.initializer_range, tensor_options),
      layers_(options, rotary_emb_, factories, tensor_options),
      norm_(options.hidden_size, options.rms_norm_eps, tensor_options) {
  add_child("embed_tokens", embed_tokens_);
  add_child("layers", layers_);
  add_child("norm", norm_);
  add_child("rotary_emb", rotary_emb_);
}

at::Tensor Decoder::forward(const at::Tensor& ids) {
  return norm_(layers_(embed_tokens_(ids)));
}

}  // namespace meshard
