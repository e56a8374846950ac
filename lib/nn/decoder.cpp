#include "nn/decoder.h"

#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include "base/error.h"
#include "nn/recompute.h"

namespace meshard {

namespace {

AttentionConfig attention_config(const DecoderConfig& config) {
  return {config.hidden_size,      config.num_attention_heads, config.num_key_value_heads,   config.head_dim,
          config.use_qk_norm,      config.attention_bias,      config.attention_output_bias, config.rms_norm_eps,
          config.initializer_range};
}

}  // namespace

std::int64_t DecoderConfig::rotary_dim() const {
  const auto dim = static_cast<std::int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
  if (dim <= 0 || dim % 2 != 0 || dim > head_dim) {
    throw ArgumentError(
        fmt::format("head_dim {} * partial_rotary_factor {} = {} rotary elements: must be even, and 2 to "
                    "head_dim",
                    head_dim, partial_rotary_factor, dim));
  }
  return dim;
}

DecoderBlock::DecoderBlock(const DecoderConfig& config, const RotaryTable& table, std::unique_ptr<Module> feed_forward,
                           const at::TensorOptions& options)
    : recompute_(config.recompute),
      self_attn_(attention_config(config), table, options),
      mlp_(feed_forward ? std::move(feed_forward)
                        : std::make_unique<Mlp>(config.hidden_size, config.intermediate_size, config.initializer_range,
                                                options)),
      input_layernorm_(config.hidden_size, config.rms_norm_eps, options),
      post_attention_layernorm_(config.hidden_size, config.rms_norm_eps, options) {
  add_child("self_attn", self_attn_);
  add_child("mlp", *mlp_);
  add_child("input_layernorm", input_layernorm_);
  add_child("post_attention_layernorm", post_attention_layernorm_);
}

at::Tensor DecoderBlock::forward(const at::Tensor& input) {
  if (!recompute_) return compute(input);
  return recompute(input, [this](const at::Tensor& x) { return compute(x); });
}

at::Tensor DecoderBlock::compute(const at::Tensor& input) {
  const auto before = input_layernorm_.add(input, {});
  const auto after = post_attention_layernorm_.add(before.sum, self_attn_(before.normed));
  return after.sum + (*mlp_)(after.normed);
}

DecoderLayers::DecoderLayers(const DecoderConfig& config, const RotaryTable& table,
                             const FeedForwardFactory& feed_forward, const at::TensorOptions& options) {
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    auto made = feed_forward ? feed_forward(i, options) : nullptr;
    blocks_.push_back(std::make_unique<DecoderBlock>(config, table, std::move(made), options));
    list_.push_back(blocks_.back().get());
    add_child(std::to_string(i), *blocks_.back());
  }
}

at::Tensor DecoderLayers::forward(const at::Tensor& input) {
  auto x = input;
  for (auto& block : blocks_) x = (*block)(x);
  return x;
}

Decoder::Decoder(const DecoderConfig& config, const FeedForwardFactory& feed_forward, const at::TensorOptions& options)
    : rotary_emb_(config.max_position_embeddings, config.rotary_dim(), config.rope_theta, options.device()),
      embed_tokens_(config.vocab_size, config.hidden_size, config.initializer_range, options),
      layers_(config, rotary_emb_, feed_forward, options),
      norm_(config.hidden_size, config.rms_norm_eps, options) {
  add_child("embed_tokens", embed_tokens_);
  add_child("layers", layers_);
  add_child("norm", norm_);
  add_child("rotary_emb", rotary_emb_);
}

at::Tensor Decoder::forward(const at::Tensor& ids) {
  return norm_(layers_(embed_tokens_(ids)));
}

}  // namespace meshard
