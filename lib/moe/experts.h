#pragma once
// The routed experts that live on this rank: SwiGLU MLPs without biases, computed as grouped products over one stacked
// parameter per matrix. DESIGN.md section 3.

#include <vector>

#include "module/module.h"
#include "moe/options.h"

namespace meshard {

class Experts : public Module {
 public:
  /// Local. Parameters, with local = n_routed_experts / parallel.size: "gate_up_proj" [local * 2F, hidden_size], per
  /// expert F rows of gate, then F rows of up; "down_proj" [local * hidden_size, F]; both ~ Normal(initializer_range),
  /// each one below the other, and this rank's part of [n_routed_experts, 2F, hidden_size] and of [n_routed_experts,
  /// hidden_size, F]. The hooks of this module run: it is a unit of its own. ArgumentError if parallel.size does not
  /// divide the experts.
  Experts(const MoeOptions& options, const ExpertParallel& parallel, const at::TensorOptions& tensor_options);

  /// Local (sharded: as collective as the hooks are). rows [n, hidden_size], grouped by local expert, `expert_rows` of
  /// each (they sum to n; zero is legal, and gives zero gradients) -> the same shape. Differentiable; keeps rows, gate
  /// and up for backward.
  ///
  /// With `expert_ends` (int32 [local], on rows' device, DispatchPlan) and grouped_products(rows) `expert_rows` is not
  /// looked at; rows beyond the last end are nobody's.
  at::Tensor compute(const at::Tensor& rows, const std::vector<std::int64_t>& expert_rows,
                     const at::Tensor& expert_ends = {});

  /// Local. Whether the products of all experts are one call each, which needs only expert_ends.
  bool grouped_products(const at::Tensor& rows) const;

 protected:
  /// LogicError: rows without their grouping mean nothing; use compute().
  at::Tensor forward(const at::Tensor& input) override;

 private:
  Parameter gate_up_proj_;
  Parameter down_proj_;
};

}  // namespace meshard
