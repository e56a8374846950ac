#include "moe/balance_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "base/error.h"
#include "module/device_path.h"
#include "moe/selection.h"

namespace meshard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A bare sigmoid would let the router shrink its loss by shrinking every score.
at::Tensor probabilities_of(const at::Tensor& scores, const MoeOptions& options) {
  switch (options.scoring) {
    case MoeOptions::Scoring::Softmax:
      return scores;
    case MoeOptions::Scoring::Sigmoid:
      return scores / (at::sum(scores, 1, /*keepdim=*/true) + 1e-20);
  }
  throw LogicError("unknown scoring function");
}

/// [sequences, experts]: pairs of each sequence's tokens with their K largest unbiased, ungrouped scores.
at::Tensor ungrouped_loads(const at::Tensor& scores, std::int64_t sequences, std::int64_t seq_len, MoeOptions options) {
  options.n_group = options.topk_group = 1;
  auto select = on_device_path(scores) ? select_experts_aten : select_experts_cpu;
  auto ids = select(scores.detach(), {}, options).ids.view({sequences, seq_len * options.num_experts_per_tok});
  auto one = at::ones({}, scores.options()).expand(ids.sizes());
  return at::zeros({sequences, options.n_routed_experts}, scores.options()).scatter_add_(1, ids, one);
}

struct AttachLossFunction : torch::autograd::Function<AttachLossFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& carrier, const at::Tensor& loss) {
    context->saved_data["one"] = at::ones_like(loss);
    return carrier;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {grads[0], context->saved_data["one"].toTensor()};
  }
};

}  // namespace

at::Tensor scores_of_logits(const at::Tensor& logits, const MoeOptions& options) {
  switch (options.scoring) {
    case MoeOptions::Scoring::Sigmoid:
      return at::sigmoid(logits);
    case MoeOptions::Scoring::Softmax:
      return at::softmax(logits, 1);
  }
  throw LogicError("unknown scoring function");
}

at::Tensor switch_loss(const at::Tensor& logits, const at::Tensor& counts, const MoeOptions& options) {
  auto tokens = std::max<std::int64_t>(1, logits.size(0));
  auto mass = at::sum(probabilities_of(scores_of_logits(logits, options), options), 0);
  const double pairs = static_cast<double>(tokens) * options.num_experts_per_tok;
  return at::sum(mass * counts.to(mass.options())) * (options.n_routed_experts / (pairs * tokens));
}

at::Tensor sequence_loss(const at::Tensor& logits, std::int64_t seq_len, const MoeOptions& options) {
  auto sequences = logits.size(0) / seq_len, experts = options.n_routed_experts;
  auto scores = scores_of_logits(logits, options);
  auto mass = at::sum(probabilities_of(scores, options).view({sequences, seq_len, experts}), 1);
  auto loads = ungrouped_loads(scores, sequences, seq_len, options);
  const double pairs = static_cast<double>(seq_len) * options.num_experts_per_tok;
  return at::sum(mass * loads) * (experts / (pairs * seq_len));
}

at::Tensor z_loss(const at::Tensor& logits) {
  return at::sum(at::logsumexp(logits, 1).square());
}

at::Tensor attach_loss(const at::Tensor& carrier, const at::Tensor& loss) {
  return AttachLossFunction::apply(carrier, loss);
}

}  // namespace meshard
