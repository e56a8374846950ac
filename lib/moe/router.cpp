#include "moe/router.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/util/BFloat16.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "module/device_path.h"
#include "moe/balance_losses.h"
#include "moe/routing_file.h"
#include "moe/selection.h"
#include "nn/gradients.h"
#include "nn/recompute.h"

namespace meshard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RouterLogitsFunction : torch::autograd::Function<RouterLogitsFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::vector<Parameter>& parameters) {
    context->save_for_backward({x, weight});
    remember(context, parameters);
    return at::mm(x.to(at::kFloat), weight.to(at::kFloat).t());
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto saved = context->get_saved_variables();
    auto &x = saved[0], &weight = saved[1], &grad = grads[0];
    variable_list result(3);
    if (context->needs_input_grad(0)) result[0] = at::mm(grad, weight.to(at::kFloat)).to(x.scalar_type());
    if (context->needs_input_grad(1)) {
      auto product = at::mm(grad.t(), x.to(at::kFloat));
      auto write = [&](at::Tensor& target, int beta) { beta == 0 ? target.copy_(product) : target.add_(product); };
      result[1] = parameter_gradient(remembered(context)[0], grad.options(), write);
    }
    return result;
  }
};

void check_routing_options(const MoeOptions& o) {
  const bool groups_fit = o.n_group >= 1 && o.n_routed_experts % o.n_group == 0 && o.topk_group >= 1 &&
                          o.topk_group <= o.n_group && (o.n_group == 1 || o.n_routed_experts / o.n_group >= 2);
  if (groups_fit && o.num_experts_per_tok >= 1 &&
      o.num_experts_per_tok <= o.topk_group * (o.n_routed_experts / o.n_group)) {
    return;
  }
  throw ArgumentError(
      fmt::format("a router of {} experts in {} groups cannot choose {} experts among {} groups: groups must be equal, "
                  "hold 2 experts or more, and those kept must hold enough to choose from",
                  o.n_routed_experts, o.n_group, o.num_experts_per_tok, o.topk_group));
}

void check_tokens(const at::Tensor& x, std::int64_t hidden_size, std::int64_t seq_len) {
  if (x.dim() == 2 && x.size(1) == hidden_size && seq_len >= 1 && x.size(0) % seq_len == 0) return;
  throw ShapeError(
      fmt::format("a router of hidden size {} got x {} in sequences of {} tokens; it takes [sequences * "
                  "seq_len, {}]",
                  hidden_size, fmt::join(x.sizes(), " x "), seq_len, hidden_size));
}

// [tokens, 1]. Sigmoids can all be 0, so their sum has the guard that Hugging Face's models have.
at::Tensor sum_of_weights(const at::Tensor& weights, MoeOptions::Scoring scoring) {
  auto sum = at::sum(weights, 1, /*keepdim=*/true);
  switch (scoring) {
    case MoeOptions::Scoring::Sigmoid:
      return sum + 1e-20;
    case MoeOptions::Scoring::Softmax:
      return sum;
  }
  throw LogicError("unknown scoring function");
}

// Places in the tally.
enum { kDropped, kAuxLoss, kZLoss, kMinGap, kTallied };

at::Tensor empty_tally() {
  auto tally = at::zeros({kTallied}, at::kDouble);
  tally.mutable_data_ptr<double>()[kMinGap] = RouterTally().min_gap;
  return tally;
}

// As a bf16 counter counts: from 256 on, +1 rounds back.
void count_in_bf16(std::int64_t& count) {
  count = static_cast<std::int64_t>(static_cast<float>(c10::BFloat16(static_cast<float>(count)) + c10::BFloat16(1.0f)));
}

}  // namespace

Router::Router(const MoeOptions& options, int layer, const MoePass& pass, const at::TensorOptions& tensor_options)
    : options_(options), layer_(layer), pass_(pass), tally_(empty_tally()) {
  check_routing_options(options);
  auto experts = options.n_routed_experts;
  weight_ = add_parameter("weight", {experts, options.hidden_size}, tensor_options,
                          Init::normal(options.initializer_range), /*decay=*/true);
  auto initial = options.expert_bias.initial;
  auto bias = [=] { return at::full({experts}, initial, at::kFloat); };
  add_buffer("e_score_correction_bias", bias, at::kCPU, /*persistent=*/true);
  auto zero = [=] { return at::zeros({experts}, at::kLong); };
  counts_ = add_buffer("tokens_per_expert", zero, at::kCPU, /*persistent=*/false);
}

Routing Router::route(const at::Tensor& x, std::int64_t seq_len) {
  check_tokens(x, options_.hidden_size, seq_len);
  follow(x.device());
  auto logits = (*this)(x);
  auto scores = scores_of_logits(logits, options_);
  auto chosen = computed_once([&] { return choose(scores); });
  auto weights = weights_of(scores, chosen);
  auto ids = options_.capacity_factor ? computed_once([&] { return within_capacity(chosen, weights); }) : chosen;
  count(ids);
  return {ids, with_losses(weights, logits, chosen, seq_len)};
}

void Router::clear() {
  counts_.zero_();
  tally_.copy_(empty_tally(), /*non_blocking=*/true);
}

RouterTally Router::tally() const {
  auto host = read_back(tally_);
  auto* number = host.const_data_ptr<double>();
  return {static_cast<std::int64_t>(number[kDropped]), number[kAuxLoss], number[kZLoss], number[kMinGap]};
}

// The model is made elsewhere. The handles of the buffer see it move.
void Router::follow(at::Device device) {
  if (counts_.device() == device) return;
  counts_.set_data(counts_.to(device));
  tally_ = tally_.to(device);
}

void Router::add_to_tally(int number, const at::Tensor& value) {
  tally_.select(0, number).add_(value.detach());
}

at::Tensor Router::forward(const at::Tensor& x) {
  return RouterLogitsFunction::apply(x, weight_.tensor(), std::vector{weight_});
}

at::Tensor Router::bias_on(const at::Tensor& scores) {
  return options_.expert_bias.enabled ? bias().to(scores.device(), at::kFloat, /*non_blocking=*/true) : at::Tensor();
}

at::Tensor Router::choose(const at::Tensor& scores) {
  const at::NoGradGuard no_grad;
  auto select = on_device_path(scores) ? select_experts_aten : select_experts_cpu;
  auto selection = select(scores, bias_on(scores), options_);
  if (!pass_.training) return selection.ids;
  auto least = tally_.select(0, kMinGap);
  least.copy_(at::minimum(least, selection.gap));
  if (!pass_.tap) return selection.ids;
  return pass_.tap->pass(layer_, read_back(selection.ids)).to(selection.ids.device());
}

at::Tensor Router::weights_of(const at::Tensor& scores, const at::Tensor& chosen) {
  const bool biased = options_.fault == Fault::WeightsFromBiasedScores && options_.expert_bias.enabled;
  auto weights = at::gather(biased ? scores + bias_on(scores) : scores, 1, chosen);
  if (options_.norm_topk_prob) {
    weights = weights / sum_of_weights(weights, options_.scoring);
  }
  return options_.routed_scaling_factor == 1.0 ? weights : weights * options_.routed_scaling_factor;
}

at::Tensor Router::within_capacity(const at::Tensor& chosen, const at::Tensor& weights) {
  auto ids = chosen.clone();
  auto experts = options_.n_routed_experts, capacity = expert_capacity(ids.size(0), options_);
  auto dropped = on_device_path(ids)
                     ? drop_over_capacity_aten(ids, weights, experts, capacity)
                     : at::scalar_tensor(drop_over_capacity(ids, weights, experts, capacity), at::kLong);
  if (pass_.training) add_to_tally(kDropped, dropped);
  return ids;
}

void Router::count(const at::Tensor& ids) {
  const bool wanted = pass_.training || options_.fault == Fault::CountInEval;
  const bool first = !in_recomputation() || options_.fault == Fault::DoubleCountRecompute;
  if (!wanted || !first) return;
  const bool in_bf16 = options_.fault == Fault::CountsInBf16;
  if (on_device_path(ids) && !in_bf16) {
    counts_.add_(pairs_of_experts(ids, options_.n_routed_experts));
    return;
  }
  auto on_host = read_back(ids), counts = read_back(counts_);
  auto* pcounts = counts.mutable_data_ptr<std::int64_t>();
  auto* pids = on_host.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    if (pids[i] == kDroppedPair) continue;
    in_bf16 ? count_in_bf16(pcounts[pids[i]]) : static_cast<void>(++pcounts[pids[i]]);
  }
  if (!counts.is_same(counts_)) counts_.copy_(counts);
}

at::Tensor Router::with_losses(const at::Tensor& weights, const at::Tensor& logits, const at::Tensor& chosen,
                               std::int64_t seq_len) {
  if (!pass_.training) return weights;
  at::Tensor total;
  auto add = [&](const at::Tensor& loss, double coefficient, int number) {
    auto scaled = loss * (pass_.loss_scale * coefficient);
    if (!in_recomputation()) add_to_tally(number, scaled);
    total = total.defined() ? total + scaled : scaled;
  };
  switch (options_.aux_loss_coeff > 0.0 ? options_.aux_loss : MoeOptions::AuxLoss::None) {
    case MoeOptions::AuxLoss::None:
      break;
    case MoeOptions::AuxLoss::Switch: {
      auto loads = pairs_of_experts(chosen, options_.n_routed_experts);
      add(switch_loss(logits, loads, options_), options_.aux_loss_coeff * logits.size(0), kAuxLoss);
      break;
    }
    case MoeOptions::AuxLoss::Sequence:
      add(sequence_loss(logits, seq_len, options_), options_.aux_loss_coeff * seq_len, kAuxLoss);
      break;
  }
  if (options_.z_loss_coeff > 0.0) add(z_loss(logits), options_.z_loss_coeff, kZLoss);
  return total.defined() ? attach_loss(weights, total) : weights;
}

}  // namespace meshard
