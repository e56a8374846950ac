#pragma once
// A router on the bench: with the options and the pass that it refers to, and random weights.

#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>

#include <ostream>
#include <utility>
#include <vector>

#include "moe/router.h"

namespace meshard {

using Scoring = MoeOptions::Scoring;
using AuxLoss = MoeOptions::AuxLoss;

inline std::ostream& operator<<(std::ostream& out, Scoring scoring) {
  return out << (scoring == Scoring::Sigmoid ? "sigmoid" : "softmax");
}
inline std::ostream& operator<<(std::ostream& out, AuxLoss loss) {
  return out << (loss == AuxLoss::None ? "none" : loss == AuxLoss::Switch ? "switch" : "sequence");
}

inline MoeOptions options_of(std::int64_t experts, std::int64_t chosen, std::int64_t hidden) {
  MoeOptions options;
  options.hidden_size = hidden;
  options.n_routed_experts = experts;
  options.num_experts_per_tok = chosen;
  return options;
}

struct Bench {
  explicit Bench(MoeOptions o, const at::TensorOptions& tensor_options = at::kFloat)
      : options(std::move(o)), router(options, 3, pass, tensor_options) {
    pass.training = true;
    if (weight().is_cpu()) weight().detach().copy_(at::randn(weight().sizes()));
  }
  /// Identity weights: logits are the input.
  void make_transparent() { weight().detach().zero_().fill_diagonal_(1.0); }
  at::Tensor& weight() { return slot().tensor; }
  Slot& slot() { return router.parameters()[0].parameter.slot(); }
  Routing route(const at::Tensor& x, std::int64_t seq_len = 1) { return router.route(x, seq_len); }

  MoeOptions options;
  MoePass pass;
  Router router;
};

inline at::Tensor leaf(const at::Tensor& values) {
  return values.detach().clone().set_requires_grad(true);
}

inline std::vector<std::int64_t> list_of(const at::Tensor& ids) {
  auto* p = ids.const_data_ptr<std::int64_t>();
  return {p, p + ids.numel()};
}

}  // namespace meshard
