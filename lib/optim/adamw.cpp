#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include "optim/decay_runs.h"
#include "optim/optimizer.h"

namespace meshard {

void AdamW::allocate_state(const FlatShard& shard) {
  auto weight = shard.weight.detach();
  moments_[shard.name] = {at::zeros_like(weight), at::zeros_like(weight)};
}

std::vector<NamedState> AdamW::state() const {
  std::vector<NamedState> all;
  for (auto& [shard, moments] : moments_) {
    all.push_back({shard, "exp_avg", moments.exp_avg});
    all.push_back({shard, "exp_avg_sq", moments.exp_avg_sq});
  }
  return all;
}

void AdamW::update(const FlatShard& shard, const StepArguments& arguments) {
  auto& moments = moments_.at(shard.name);
  // The kernel takes the step as a float tensor for each piece, and only reads it: one serves all.
  auto step = at::full({}, static_cast<double>(steps()), shard.weight.options().dtype(at::kFloat));
  update_runs(shard, {shard.grad, shard.weight, moments.exp_avg, moments.exp_avg_sq},
              [&](bool decay, const Columns& columns) {
                std::vector<at::Tensor> step_of_piece(columns[0].size(), step);
                at::_fused_adamw_(columns[1], columns[0], columns[2], columns[3], /*max_exp_avg_sqs=*/{}, step_of_piece,
                                  arguments.lr, options_.beta1, options_.beta2, decay ? options_.weight_decay : 0.0,
                                  options_.eps,
                                  /*amsgrad=*/false, /*maximize=*/false, arguments.divisor(shard));
              });
}

}  // namespace meshard
