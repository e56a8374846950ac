#pragma once
// Cross-entropy fused with the head: the logits of all tokens never exist, only those of a slice of rows, in fp32.

#include <ATen/core/Tensor.h>

#include "module/module.h"

namespace meshard {

/// Targets with this value are left out of the loss, and have no gradient.
constexpr std::int64_t kIgnoredTarget = -100;

/// Local. scale * sum over tokens of -log softmax(hidden W^T)[target]: a scalar, fp32. hidden [..., hidden_size] fp32
/// or bf16, `head` [vocab_size, hidden_size], targets int64 of hidden's leading shape. Logits are products in hidden's
/// dtype, then fp32. ArgumentError, with the target, if one is neither in the vocabulary nor ignored (CPU only).
///
/// Backward makes each slice's logits again, except the last slice's, which wait for it in place.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const Parameter& head, const at::Tensor& targets,
                                double scale);

/// Local. ArgumentError, with the target, if one is neither in the vocabulary nor ignored. targets int64 on the CPU;
/// others are not looked at: who uploads them checks them before.
void check_targets(const at::Tensor& targets, std::int64_t vocab_size);

/// Local. Rows of a slice: 256 to 2048, about 64 MiB of fp32 logits.
std::int64_t logit_slice_rows(std::int64_t vocab_size);

/// Local. Losses [rows] (fp32, 0 where ignored) of fp32 logits [rows, vocab]. With `grad_scale` not 0 the logits become
/// grad_scale * d(sum of losses) / d(logits). `_cpu` is fused, `_aten` serves every other device.
at::Tensor cross_entropy_rows_cpu(at::Tensor& logits, const at::Tensor& targets, double grad_scale);
at::Tensor cross_entropy_rows_aten(at::Tensor& logits, const at::Tensor& targets, double grad_scale);

}  // namespace meshard
