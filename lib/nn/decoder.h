#pragma once
// The decoder: embedding, blocks and final norm, named as Hugging Face's LlamaModel.

#include <functional>
#include <memory>

#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/mlp.h"

namespace meshard {

/// Field names are those of Hugging Face's config.json; `recompute` is ours.
struct DecoderConfig {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t max_position_embeddings = 0;
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-5;
  double partial_rotary_factor = 1.0;  ///< of each head's elements, int(head_dim * factor) are rotated
  double initializer_range = 0.02;
  bool use_qk_norm = false;
  bool attention_bias = false;         ///< on q, k and v
  bool attention_output_bias = false;  ///< on o: Llama and Qwen with attention_bias, never GLM
  bool tie_word_embeddings = false;
  bool recompute = false;  ///< keep only each block's input for backward

  /// Local. Elements of a head that rotate. ArgumentError if that is odd or 0.
  std::int64_t rotary_dim() const;
};

/// Makes the feed-forward part of block `layer`, [batch, seq, hidden_size] -> the same; null: a dense Mlp. Called once
/// per block, in order.
using FeedForwardFactory = std::function<std::unique_ptr<Module>(std::int64_t layer, const at::TensorOptions& options)>;

/// x + attention(norm(x)), then x + mlp(norm(x)).
class DecoderBlock : public Module {
 public:
  /// Local. Children self_attn, mlp (`feed_forward`), input_layernorm, post_attention_layernorm. `table` must outlive
  /// this. The hooks of self_attn and mlp run, those of the norms do not.
  DecoderBlock(const DecoderConfig& config, const RotaryTable& table, std::unique_ptr<Module> feed_forward,
               const at::TensorOptions& options);

 protected:
  /// Local. [batch, seq, hidden_size] -> the same.
  at::Tensor forward(const at::Tensor& input) override;

 private:
  at::Tensor compute(const at::Tensor& input);

  bool recompute_;
  Attention self_attn_;
  std::unique_ptr<Module> mlp_;
  RMSNorm input_layernorm_;
  RMSNorm post_attention_layernorm_;
};

/// The blocks in order; children "0", "1"...
class DecoderLayers : public Module {
 public:
  DecoderLayers(const DecoderConfig& config, const RotaryTable& table, const FeedForwardFactory& feed_forward,
                const at::TensorOptions& options);
  const std::vector<Module*>& list() const { return list_; }

 protected:
  at::Tensor forward(const at::Tensor& input) override;

 private:
  std::vector<std::unique_ptr<DecoderBlock>> blocks_;
  std::vector<Module*> list_;
};

class Decoder : public Module {
 public:
  /// Local. Children embed_tokens, layers, norm, rotary_emb.
  Decoder(const DecoderConfig& config, const FeedForwardFactory& feed_forward, const at::TensorOptions& options);

  const Parameter& embedding() const { return embed_tokens_.weight(); }
  const std::vector<Module*>& layers() const { return layers_.list(); }

 protected:
  /// Local. ids int64 [batch, seq] -> normalised hidden states [batch, seq, hidden_size].
  at::Tensor forward(const at::Tensor& ids) override;

 private:
  RotaryTable rotary_emb_;
  Embedding embed_tokens_;
  DecoderLayers layers_;
  RMSNorm norm_;
};

}  // namespace meshard
