#pragma once
// A decoder-only language model: module tree, parameter names and maths of Hugging Face's LlamaForCausalLM (with QK
// norm: Qwen3ForCausalLM). With mixtures of experts in place of its MLPs (moe/): Glm4MoeForCausalLM,
// Qwen3MoeForCausalLM.

#include "nn/decoder.h"

namespace meshard {

/// The output head.
class LmHead : public Linear {
 public:
  using Linear::Linear;

  /// Local (sharded: as collective as the hooks are). What linear_cross_entropy() gives: the logits never exist as a
  /// whole.
  at::Tensor loss(const at::Tensor& hidden, const at::Tensor& targets, double scale);
};

class CausalLM : public Module {
 public:
  /// Local. The model on `tensor_options`' device (meta: no memory but the rotary tables, which are real, on the CPU)
  /// and dtype (fp32, bf16). Parameters are uninitialised: see nn/init.h. `factories` make the parts of blocks.
  ///
  /// Throws ArgumentError for sizes that contradict each other, and a dtype that is neither.
  CausalLM(const DecoderOptions& options, const at::TensorOptions& tensor_options,
           const BlockFactories& factories = {});

  /// Local (sharded: as collective as the hooks are). scale * sum of token losses over ids and targets [batch, seq]
  /// int64: a scalar, fp32. Sharded: scale = ranks / target tokens of the whole step, as gradients are averaged over
  /// ranks. Target kIgnoredTarget (-100): left out.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets, double scale);

  /// Local (sharded: as collective as the hooks are). [batch, seq, vocab_size] in the model's dtype.
  at::Tensor logits(const at::Tensor& ids) { return (*this)(ids); }

  /// The parts that become sharding units: the decoder blocks, in order, and what stands before and after them.
  const std::vector<Module*>& layers() const { return model_.layers(); }
  Module& embedding() { return model_.embed_tokens(); }
  Module& norm() { return model_.norm(); }
  Module& head() { return lm_head_; }
  bool tied() const { return tied_; }  ///< the head's weight is the embedding's

 protected:
  at::Tensor forward(const at::Tensor& ids) override;

 private:
  bool tied_;
  Decoder model_;
  LmHead lm_head_;
};

}  // namespace meshard
