#pragma once
// The decoder: embedding, blocks and final norm, named as Hugging Face's LlamaModel.

#include <functional>
#include <memory>

#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/mlp.h"

namespace meshard {

/// Makes a part of block `layer`, [batch, seq, hidden_size] -> the same. Called once per block, in order.
using AttentionFactory = std::function<std::unique_ptr<Module>(std::int64_t layer, const RotaryTable& table,
                                                               const at::TensorOptions& tensor_options)>;
using FeedForwardFactory =
    std::function<std::unique_ptr<Module>(std::int64_t layer, const at::TensorOptions& tensor_options)>;

/// Where blocks get their parts. A factory that is empty, or that returns null for a block: the dense default.
struct BlockFactories {
  AttentionFactory attention;       ///< default: Attention
  FeedForwardFactory feed_forward;  ///< default: Mlp
};

/// x + attention(norm(x)), then x + mlp(norm(x)).
class DecoderBlock : public Module {
 public:
  /// Local. Children self_attn and mlp, as `factories` make them for block `layer`, input_layernorm,
  /// post_attention_layernorm. `table` must outlive this. The hooks of self_attn and mlp run, those of the norms do
  /// not.
  DecoderBlock(const DecoderOptions& options, std::int64_t layer, const RotaryTable& table,
               const BlockFactories& factories, const at::TensorOptions& tensor_options);

 protected:
  /// Local. [batch, seq, hidden_size] -> the same.
  at::Tensor forward(const at::Tensor& input) override;

 private:
  at::Tensor compute(const at::Tensor& input);

  bool recompute_;
  std::unique_ptr<Module> self_attn_;
  std::unique_ptr<Module> mlp_;
  RMSNorm input_layernorm_;
  RMSNorm post_attention_layernorm_;
};

/// The blocks in order; children "0", "1"...
class DecoderLayers : public Module {
 public:
  DecoderLayers(const DecoderOptions& options, const RotaryTable& table, const BlockFactories& factories,
                const at::TensorOptions& tensor_options);
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
  Decoder(const DecoderOptions& options, const BlockFactories& factories, const at::TensorOptions& tensor_options);

  Embedding& embed_tokens() { return embed_tokens_; }
  RMSNorm& norm() { return norm_; }
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
