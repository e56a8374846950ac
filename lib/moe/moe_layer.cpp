#include "moe/moe_layer.h"

#include <ATen/TensorOperators.h>

#include "moe/dispatch.h"

namespace meshard {

MoeLayer::MoeLayer(const MoeOptions& options, int layer, int index, const ExpertParallel& parallel, const MoePass& pass,
                   const at::TensorOptions& tensor_options)
    : n_routed_experts_(options.n_routed_experts),
      parallel_(parallel),
      layer_(layer),
      gate_(options, index, pass, tensor_options),
      experts_(options, parallel, tensor_options) {
  add_child("gate", gate_);
  add_child("experts", experts_);
  if (options.n_shared_experts > 0) {
    shared_experts_.emplace(options.hidden_size, options.n_shared_experts * options.moe_intermediate_size,
                            options.initializer_range, tensor_options);
    add_child("shared_experts", *shared_experts_);
  }
}

at::Tensor MoeLayer::forward(const at::Tensor& input) {
  auto x = input.reshape({-1, input.size(-1)});
  auto routing = gate_.route(x, input.size(1));
  at::Tensor shared;
  auto compute_shared = [&] {
    if (shared_experts_ && !shared.defined()) shared = (*shared_experts_)(input);
  };
  auto plan = plan_dispatch(routing.ids, n_routed_experts_, parallel_, experts_.grouped_products(x), compute_shared);
  auto rows = experts_.compute(dispatch(x, plan), plan->expert_rows, plan->expert_ends);
  auto routed = combine(rows, routing.weights, plan).view(input.sizes());
  compute_shared();
  return shared.defined() ? routed + shared : routed;
}

MoeLayers::MoeLayers(const MoeOptions& options, std::int64_t first_k_dense_replace, const ExpertParallel& parallel)
    : options_(options), first_k_dense_replace_(first_k_dense_replace), parallel_(parallel) {}

std::unique_ptr<Module> MoeLayers::make(std::int64_t layer, const at::TensorOptions& tensor_options) {
  if (layer < first_k_dense_replace_) return nullptr;
  auto made = std::make_unique<MoeLayer>(options_, static_cast<int>(layer), static_cast<int>(list_.size()), parallel_,
                                         pass_, tensor_options);
  list_.push_back(made.get());
  return made;
}

}  // namespace meshard
