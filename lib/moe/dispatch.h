#pragma once
// Tokens to the ranks of their experts and back. DESIGN.md section 2. Rows travel in the model's dtype; a rank without
// tokens to send or receive takes part in every collective. No memory proportional to tokens * experts * width.

#include <functional>
#include <memory>
#include <vector>

#include "moe/options.h"

namespace meshard {

/// The way of one microbatch's (token, choice) pairs. On the sending side pairs lie sorted by expert (stable: by token
/// within one), so that each rank's share is contiguous; on the receiving side rows arrive by sender and are regrouped
/// by local expert.
struct DispatchPlan {
  ExpertParallel experts;
  at::Tensor token_of;  ///< [pairs sent] int64: the token of each pair, sorted by expert
  at::Tensor row_of;    ///< [tokens, K] int64: each pair's place in that order; kDroppedPair if it is dropped
  std::vector<std::int64_t> send_rows;     ///< to each rank of the axis
  std::vector<std::int64_t> receive_rows;  ///< from each rank of the axis
  /// [received] int64: arrival number of the row that stands at each place by expert, and the inverse. Undefined
  /// where they arrive in order: without expert parallelism, or with one local expert.
  at::Tensor arrival_of, place_of;
  std::vector<std::int64_t> expert_rows;  ///< rows of each local expert; empty if only expert_ends is known
  /// On the path of devices, [local experts] int32: where each one's rows end.
  at::Tensor expert_ends;

  std::int64_t received() const;
};

/// Collective over expert (one all_to_all of counts; without expert parallelism local). ids [tokens, K] int64; the
/// index tensors of the plan are where they are. A recomputed forward communicates nothing: it gets the first one's
/// counts.
///
/// On a device all is made there, and the counts are read: one host wait, none in a recomputed forward; `meanwhile` is
/// called before it, to queue other work. Without expert parallelism nothing is read if `ends_suffice`: dropped pairs
/// then have rows too, the last ones, which no expert sees and no token is given. ArgumentError for an id beyond the
/// experts, on the host.
std::shared_ptr<const DispatchPlan> plan_dispatch(const at::Tensor& ids, std::int64_t n_routed_experts,
                                                  const ExpertParallel& experts, bool ends_suffice = false,
                                                  const std::function<void()>& meanwhile = {});

/// Collective over expert, in forward and in backward (one all_to_all_v each). x [tokens, width] -> this rank's rows
/// [received, width], grouped by local expert. Differentiable.
at::Tensor dispatch(const at::Tensor& x, std::shared_ptr<const DispatchPlan> plan);

/// Collective over expert, in forward and in backward (one all_to_all_v each). The experts' outputs [received, width]
/// -> [tokens, width], each token's sum of its pairs times weights [tokens, K] (fp32), in fp32, in the order of K.
/// Differentiable in both.
at::Tensor combine(const at::Tensor& rows, const at::Tensor& weights, std::shared_ptr<const DispatchPlan> plan);

}  // namespace meshard
