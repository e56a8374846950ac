#pragma once
// Rotary, causal, grouped-query attention on the CPU, fused: queries and keys are turned while they are packed, scores
// live in one tile at a time, gradients are turned back while they are written. After FlashAttention-2 (Dao 2023),
// one task per (sequence, key-value head), so no two threads add into one gradient: the result does not depend on the
// thread count. ATen's own CPU kernel makes one BLAS call per small tile, which at head_dim 32 to 128 costs more than
// the arithmetic.
//
// Its reference, and the path on every other device: rotate() and at::scaled_dot_product_attention.

#include <ATen/core/Tensor.h>

#include "nn/rotary.h"

namespace meshard {

struct AttentionForward {
  at::Tensor output;     ///< [batch, seq, heads, head_dim], the dtype of q
  at::Tensor logsumexp;  ///< [batch, heads, seq], fp32: of the scaled scores of each query
};

/// Local. q [batch, seq, heads, head_dim], k and v [batch, seq, kv_heads, head_dim], contiguous, fp32 or bf16
/// (arithmetic in fp32), not yet rotated; `table` for seq positions. Scale head_dim^-0.5. Any head_dim and seq.
AttentionForward rotary_attention_forward_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                              const RotaryTable::Slice& table);

struct AttentionBackward {
  at::Tensor grad_q;
  at::Tensor grad_k;
  at::Tensor grad_v;
};

/// Local. Gradients of the inputs of the forward, given all of its tensors and `grad_output`, contiguous.
AttentionBackward rotary_attention_backward_cpu(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                                const at::Tensor& v, const AttentionForward& forward,
                                                const RotaryTable::Slice& table);

}  // namespace meshard
