#pragma once
// The feed-forward part of a decoder block as a mixture of experts, and the set of such layers of one model.

#include <memory>
#include <optional>

#include "moe/experts.h"
#include "moe/router.h"
#include "nn/mlp.h"

namespace meshard {

class MoeLayer : public Module {
 public:
  /// Local. Children gate, experts, and with n_shared_experts shared_experts; names as in Hugging Face's Glm4MoeMoE,
  /// with the experts stacked. `layer`: index of the decoder block; `index`: among the model's MoE layers. `options`
  /// and `pass` must outlive this. The hooks of experts run, those of gate and shared_experts do not.
  MoeLayer(const MoeOptions& options, int layer, int index, const ExpertParallel& parallel, const MoePass& pass,
           const at::TensorOptions& tensor_options);

  int layer() const { return layer_; }
  Router& router() { return gate_; }
  Experts& experts() { return experts_; }

 protected:
  /// Collective over expert. [batch, seq, hidden_size] -> the same: shared(x) + sum_k w_k FFN_k(x).
  at::Tensor forward(const at::Tensor& input) override;

 private:
  std::int64_t n_routed_experts_;
  ExpertParallel parallel_;
  int layer_;
  Router gate_;
  Experts experts_;
  std::optional<Mlp> shared_experts_;
};

/// The MoE layers of one model, and what they share. Must outlive the model.
class MoeLayers {
 public:
  /// Local. Decoder blocks from `first_k_dense_replace` on have experts.
  MoeLayers(const MoeOptions& options, std::int64_t first_k_dense_replace, const ExpertParallel& parallel);
  MoeLayers(const MoeLayers&) = delete;
  MoeLayers& operator=(const MoeLayers&) = delete;

  /// Local. What CausalLM asks for the feed-forward part of block `layer`: a MoeLayer, which the caller owns, or null
  /// for a dense one. Ask for the blocks in order, each once.
  std::unique_ptr<Module> make(std::int64_t layer, const at::TensorOptions& tensor_options);

  const std::vector<MoeLayer*>& list() const { return list_; }
  const MoeOptions& options() const { return options_; }
  const ExpertParallel& parallel() const { return parallel_; }
  MoePass& pass() { return pass_; }

 private:
  MoeOptions options_;
  std::int64_t first_k_dense_replace_;
  ExpertParallel parallel_;
  MoePass pass_;
  std::vector<MoeLayer*> list_;
};

}  // namespace meshard
