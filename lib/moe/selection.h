#pragma once
// Which experts a token goes to. Exact on every device: ties go to the lower index, NaN sorts first. DESIGN.md
// section 1, steps 3 to 5.

#include <ATen/core/Tensor.h>

#include "moe/options.h"

namespace meshard {

struct Selection {
  at::Tensor ids;  ///< [tokens, K] int64, the chosen experts by falling score
  /// Smallest distance, over the tokens, between the K-th score and the best one that was not chosen, among the kept
  /// groups: below rounding differences a choice is luck. Infinite if there is nothing else to choose.
  at::Tensor gap;  ///< fp32, a scalar, where the scores are

  double min_gap() const { return gap.item<float>(); }
};

/// Local. The K largest of scores [tokens, experts] + bias [experts] (fp32; undefined bias: 0) in the order of a stable
/// descending sort. With n_group > 1 only experts of the topk_group best groups, a group's score being the sum of its
/// two largest biased scores. NaN is larger than every number. `_cpu` is fused, `_aten` serves every other device.
Selection select_experts_cpu(const at::Tensor& scores, const at::Tensor& bias, const MoeOptions& options);
Selection select_experts_aten(const at::Tensor& scores, const at::Tensor& bias, const MoeOptions& options);

/// Ids with this value are pairs that were dropped: no expert sees them, and they add nothing to their token.
constexpr std::int64_t kDroppedPair = -1;

/// Local. Pairs that one expert takes of `tokens` tokens: ceil(capacity_factor * tokens * K / experts), at least 1.
std::int64_t expert_capacity(std::int64_t tokens, const MoeOptions& options);

/// Local. Replaces by kDroppedPair what goes beyond `capacity` for an expert: the pairs of least weight [tokens, K],
/// of equal ones the later token's. `ids` int64 on the host, in place. Returns the number dropped.
std::int64_t drop_over_capacity(at::Tensor& ids, const at::Tensor& weights, std::int64_t experts,
                                std::int64_t capacity);
/// Local. The same with ATen's operators, everything on the device of ids; the number is a tensor.
at::Tensor drop_over_capacity_aten(at::Tensor& ids, const at::Tensor& weights, std::int64_t experts,
                                   std::int64_t capacity);

/// Local. [experts] int64: how many of `ids` are each expert's; dropped pairs are nobody's. On their device, no wait.
at::Tensor pairs_of_experts(const at::Tensor& ids, std::int64_t experts);

}  // namespace meshard
