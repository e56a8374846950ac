#pragma once
// Auxiliary losses of a router, as plain differentiable functions of its logits [tokens, experts], fp32. DESIGN.md
// section 6. Each is the SUM over what it covers, times its coefficient; attach_loss() brings it into the backward.

#include <ATen/core/Tensor.h>

#include "moe/options.h"

namespace meshard {

/// Local. The scores by which experts are chosen: sigmoid of the logits, or their softmax over the experts.
at::Tensor scores_of_logits(const at::Tensor& logits, const MoeOptions& options);

/// Local. Switch Transformer's (Fedus et al. 2021) over all tokens given, one microbatch of one rank:
/// experts * sum_i f_i P_i, f_i = counts_i / (tokens K) [counts: int64, pairs chosen], P_i = mean over tokens of the
/// probabilities: softmax(z), or sigmoid(z) normalised by its sum + 1e-20. A scalar.
at::Tensor switch_loss(const at::Tensor& logits, const at::Tensor& counts, const MoeOptions& options);

/// Local. DeepSeek-V3's per sequence (2024, eq. 17 to 20): sum over sequences of sum_i f_i P_i,
/// f_i = experts / (K L) * tokens of the sequence whose K largest unbiased, ungrouped scores contain i,
/// P_i = mean over the sequence of s_i / sum_j s_j. tokens = sequences * seq_len. A scalar.
at::Tensor sequence_loss(const at::Tensor& logits, std::int64_t seq_len, const MoeOptions& options);

/// Local. ST-MoE's (Zoph et al. 2022): sum over tokens of logsumexp(z)^2. A scalar.
at::Tensor z_loss(const at::Tensor& logits);

/// Local. `carrier` itself; in backward `loss` (a scalar) gets gradient 1, as if it had been added to the model's loss.
at::Tensor attach_loss(const at::Tensor& carrier, const at::Tensor& loss);

}  // namespace meshard
