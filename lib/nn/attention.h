#pragma once
// Causal self-attention with grouped queries (Ainslie et al. 2023) and rotary positions.

#include <optional>

#include "nn/linear.h"
#include "nn/options.h"
#include "nn/rms_norm.h"
#include "nn/rotary.h"

namespace meshard {

class Attention : public Module {
 public:
  /// Local. Children q_proj, k_proj, v_proj, o_proj, and with use_qk_norm q_norm, k_norm. `table` must outlive this.
  /// The hooks of the first three and of the norms do not run: the unit that owns this module owns them.
  Attention(const DecoderOptions& options, const RotaryTable& table, const at::TensorOptions& tensor_options);

 protected:
  /// Local. [batch, seq, hidden_size] -> the same.
  at::Tensor forward(const at::Tensor& input) override;

 private:
  DecoderOptions options_;
  const RotaryTable& table_;
  Linear q_proj_;
  Linear k_proj_;
  Linear v_proj_;
  Linear o_proj_;
  std::optional<RMSNorm> q_norm_;
  std::optional<RMSNorm> k_norm_;
};

/// Local. Turns q [batch, seq, heads, head_dim] and k [batch, seq, kv_heads, head_dim] by the table, then causal
/// attention over v with scale head_dim^-0.5: [batch, seq, heads, head_dim]. Differentiable. Fused on the CPU, ATen
/// elsewhere: there q and k may be turned in place, so that the caller must own them alone.
at::Tensor rotary_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const RotaryTable::Slice& table);
at::Tensor rotary_attention_aten(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const RotaryTable::Slice& table);

}  // namespace meshard
