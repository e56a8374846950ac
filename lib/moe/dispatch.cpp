#include "moe/dispatch.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "base/error.h"
#include "module/device_path.h"
#include "moe/rows.h"
#include "moe/selection.h"
#include "nn/recompute.h"

namespace meshard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using SharedPlan = std::shared_ptr<const DispatchPlan>;

std::int64_t sum_of(std::span<const std::int64_t> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

at::Tensor count_pairs(const at::Tensor& ids, std::int64_t experts) {
  auto counts = at::zeros({experts}, at::kLong);
  auto* count = counts.mutable_data_ptr<std::int64_t>();
  for (auto id : std::span(ids.const_data_ptr<std::int64_t>(), ids.numel())) {
    if (id >= experts) throw ArgumentError(fmt::format("a token was routed to expert {} of {}", id, experts));
    if (id >= 0) ++count[id];
  }
  return counts;
}

// A counting sort: stable, so the pairs of one expert stay in the order of their tokens.
void sort_pairs(DispatchPlan& plan, const at::Tensor& ids, std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> next(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), next.begin(), std::int64_t{0});
  plan.token_of = at::empty({sum_of(counts)}, at::kLong);
  plan.row_of = at::empty(ids.sizes(), at::kLong);
  auto* id = ids.const_data_ptr<std::int64_t>();
  auto* token_of = plan.token_of.mutable_data_ptr<std::int64_t>();
  auto* row_of = plan.row_of.mutable_data_ptr<std::int64_t>();
  for (std::int64_t pair = 0; pair < ids.numel(); ++pair) {
    row_of[pair] = id[pair] < 0 ? kDroppedPair : next[id[pair]]++;
    if (row_of[pair] >= 0) token_of[row_of[pair]] = pair / ids.size(1);
  }
}

at::Tensor exchange_counts(const at::Tensor& counts, const ExpertParallel& experts) {
  auto received = at::empty_like(counts);
  experts.axis->all_to_all(received, counts, {.unit = "moe.counts"}).wait();
  return received;
}

// received[sender * local + e]: rows that arrive from `sender` for local expert e, in this order.
void regroup(DispatchPlan& plan, std::span<const std::int64_t> received, std::int64_t local) {
  std::vector<std::int64_t> start(received.size());
  std::exclusive_scan(received.begin(), received.end(), start.begin(), std::int64_t{0});
  plan.arrival_of = at::empty({sum_of(received)}, at::kLong);
  plan.place_of = at::empty_like(plan.arrival_of);
  auto* arrival_of = plan.arrival_of.mutable_data_ptr<std::int64_t>();
  auto* place_of = plan.place_of.mutable_data_ptr<std::int64_t>();
  std::int64_t place = 0;
  for (std::int64_t e = 0; e < local; ++e) {
    for (auto block = e; block < std::ssize(received); block += local) {
      for (auto arrival = start[block]; arrival < start[block] + received[block]; ++arrival, ++place) {
        arrival_of[place] = arrival;
        place_of[arrival] = place;
      }
    }
  }
}

at::Tensor gather(const at::Tensor& x, const at::Tensor& index) {
  return on_device_path(x) ? gather_rows_aten(x, index) : gather_rows_cpu(x, index);
}

at::Tensor sum_pairs(const at::Tensor& rows, const at::Tensor& row_of, const at::Tensor& weights) {
  return on_device_path(rows) ? sum_rows_aten(rows, row_of, weights) : sum_rows_cpu(rows, row_of, weights);
}

at::Tensor to_experts(const at::Tensor& sorted, const DispatchPlan& plan, const char* unit) {
  if (plan.experts.size == 1) return sorted;
  auto received = at::empty({plan.received(), sorted.size(1)}, sorted.options());
  plan.experts.axis->all_to_all_v(received, sorted, plan.receive_rows, plan.send_rows, {.unit = unit}).wait();
  return plan.arrival_of.defined() ? gather(received, plan.arrival_of) : received;
}

at::Tensor from_experts(const at::Tensor& rows, const DispatchPlan& plan, const char* unit) {
  if (plan.experts.size == 1) return rows;
  auto by_sender = plan.place_of.defined() ? gather(rows, plan.place_of) : rows;
  auto sorted = at::empty({plan.token_of.size(0), rows.size(1)}, rows.options());
  plan.experts.axis->all_to_all_v(sorted, by_sender, plan.send_rows, plan.receive_rows, {.unit = unit}).wait();
  return sorted;
}

// Of the pairs sent to and received from each expert of the world.
void set_rows(DispatchPlan& plan, std::span<const std::int64_t> sent, std::span<const std::int64_t> received) {
  auto local = std::ssize(sent) / plan.experts.size;
  plan.expert_rows.assign(local, 0);
  for (int rank = 0; rank < plan.experts.size; ++rank) {
    auto from = received.subspan(rank * local, local);
    plan.send_rows.push_back(sum_of(sent.subspan(rank * local, local)));
    plan.receive_rows.push_back(sum_of(from));
    for (std::int64_t e = 0; e < local; ++e) plan.expert_rows[e] += from[e];
  }
}

void plan_on_host(DispatchPlan& plan, const at::Tensor& pairs, std::int64_t experts) {
  auto counts = count_pairs(pairs, experts);
  const std::span sent(counts.const_data_ptr<std::int64_t>(), experts);
  sort_pairs(plan, pairs, sent);
  auto& parallel = plan.experts;
  auto exchanged = parallel.size == 1 ? counts : computed_once([&] { return exchange_counts(counts, parallel); });
  const std::span received(exchanged.const_data_ptr<std::int64_t>(), experts);
  set_rows(plan, sent, received);
  if (parallel.size > 1 && std::ssize(plan.expert_rows) > 1) regroup(plan, received, std::ssize(plan.expert_rows));
}

/// inverse[order[i]] = i.
at::Tensor inverse_of(const at::Tensor& order) {
  return at::empty_like(order).scatter_(0, order, at::arange(order.numel(), order.options()));
}

at::Tensor stable_order(const at::Tensor& keys) {
  return std::get<1>(at::sort(keys, /*stable=*/true, /*dim=*/0, /*descending=*/false));
}

void plan_on_device(DispatchPlan& plan, const at::Tensor& pairs, std::int64_t experts, bool ends_suffice,
                    const std::function<void()>& meanwhile) {
  auto flat = pairs.view({-1});
  auto order = stable_order(at::where(flat.lt(0), experts, flat));
  plan.token_of = order.div(pairs.size(1), "floor");
  plan.row_of = at::where(flat.lt(0), kDroppedPair, inverse_of(order)).view(pairs.sizes());
  auto sent = pairs_of_experts(pairs, experts);
  auto& parallel = plan.experts;
  auto local = experts / parallel.size;
  auto ends_of = [&](const at::Tensor& received) {
    return received.view({parallel.size, local}).sum(0).cumsum(0).to(at::kInt);
  };
  if (parallel.size == 1 && ends_suffice) {
    plan.expert_ends = ends_of(sent);
    return;
  }

  // Both counts, and what was read of them, stay for a recomputed forward.
  auto received = parallel.size == 1 ? sent : computed_once([&] { return exchange_counts(sent, parallel); });
  auto numbers = computed_once([&] {
    PendingRead read(at::cat({sent, received}));
    if (meanwhile) meanwhile();
    return read.wait();
  });
  auto* number = numbers.const_data_ptr<std::int64_t>();
  set_rows(plan, std::span(number, experts), std::span(number + experts, experts));
  plan.expert_ends = ends_of(received);
  plan.token_of = plan.token_of.narrow(0, 0, sum_of(plan.send_rows));
  if (parallel.size == 1 || local == 1) return;
  // By sender, then by expert of this rank; wanted the other way round.
  auto expert = at::arange(experts, received.options()).remainder(local);
  plan.arrival_of = stable_order(at::repeat_interleave(expert, received, 0, plan.received()));
  plan.place_of = inverse_of(plan.arrival_of);
}

struct PlanHolder : torch::CustomClassHolder {
  SharedPlan plan;
};

void keep_plan(AutogradContext* context, const SharedPlan& plan) {
  auto holder = c10::make_intrusive<PlanHolder>();
  holder->plan = plan;
  context->saved_data["plan"] = c10::IValue::make_capsule(std::move(holder));
}

SharedPlan kept_plan(AutogradContext* context) {
  auto holder = context->saved_data.at("plan").toCapsule();
  return static_cast<PlanHolder&>(*holder).plan;
}

struct DispatchFunction : torch::autograd::Function<DispatchFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const SharedPlan& plan) {
    keep_plan(context, plan);
    return to_experts(gather(x.contiguous(), plan->token_of), *plan, "moe.dispatch");
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto plan = kept_plan(context);
    auto sorted = from_experts(grads[0].contiguous(), *plan, "moe.dispatch.backward");
    return {sum_pairs(sorted, plan->row_of, {}), at::Tensor()};
  }
};

struct CombineFunction : torch::autograd::Function<CombineFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& weights,
                            const SharedPlan& plan) {
    keep_plan(context, plan);
    auto sorted = from_experts(rows.contiguous(), *plan, "moe.combine");
    auto factors = weights.contiguous();
    context->save_for_backward({sorted, factors});
    return sum_pairs(sorted, plan->row_of, factors);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto plan = kept_plan(context);
    auto saved = context->get_saved_variables();
    auto kernel = on_device_path(grads[0]) ? sum_rows_backward_aten : sum_rows_backward_cpu;
    auto out = kernel(grads[0].contiguous(), saved[0], plan->row_of, saved[1]);
    return {to_experts(out.grad_rows, *plan, "moe.combine.backward"), out.grad_weights, at::Tensor()};
  }
};

}  // namespace

std::int64_t DispatchPlan::received() const {
  return sum_of(receive_rows);
}

SharedPlan plan_dispatch(const at::Tensor& ids, std::int64_t n_routed_experts, const ExpertParallel& experts,
                         bool ends_suffice, const std::function<void()>& meanwhile) {
  auto plan = std::make_shared<DispatchPlan>();
  plan->experts = experts;
  auto pairs = ids.contiguous();
  on_device_path(pairs) ? plan_on_device(*plan, pairs, n_routed_experts, ends_suffice, meanwhile)
                        : plan_on_host(*plan, pairs, n_routed_experts);
  return plan;
}

at::Tensor dispatch(const at::Tensor& x, SharedPlan plan) {
  return DispatchFunction::apply(x, plan);
}

at::Tensor combine(const at::Tensor& rows, const at::Tensor& weights, SharedPlan plan) {
  return CombineFunction::apply(rows, weights, plan);
}

}  // namespace meshard
