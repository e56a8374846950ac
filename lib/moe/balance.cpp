#include "moe/balance.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/hash.h"
#include "module/device_path.h"

namespace meshard {

namespace {

// sign(mean - count), decided in integers: a mean need not be one.
at::Tensor signs(const at::Tensor& counts) {
  auto* count = counts.const_data_ptr<std::int64_t>();
  auto experts = counts.numel();
  std::int64_t total = 0;
  for (std::int64_t e = 0; e < experts; ++e) total += count[e];
  auto result = at::empty({experts}, at::kFloat);
  auto* sign = result.mutable_data_ptr<float>();
  for (std::int64_t e = 0; e < experts; ++e) {
    auto share = experts * count[e];
    sign[e] = static_cast<float>((total > share) - (total < share));
  }
  return result;
}

// The same as Fault::CountsInBf16 has it.
at::Tensor signs_in_bf16(const at::Tensor& counts) {
  auto rounded = counts.to(at::kBFloat16);
  return (rounded.mean() - rounded).sign().to(at::kFloat);
}

at::Tensor bias_update(const at::Tensor& counts, const MoeOptions& options) {
  auto sign = options.fault == Fault::CountsInBf16 ? signs_in_bf16(counts) : signs(counts);
  auto update = sign.mul_(options.expert_bias.update_rate);
  return options.expert_bias.recenter ? update.sub_(update.mean()) : update;
}

LayerBalance describe(MoeLayer& layer, const at::Tensor& counts) {
  LayerBalance out;
  out.layer = layer.layer();
  auto* count = counts.const_data_ptr<std::int64_t>();
  out.counts.assign(count, count + counts.numel());
  for (auto n : out.counts) out.count_total += n;
  out.dead = std::ranges::count(out.counts, 0);
  auto mean = static_cast<double>(out.count_total) / static_cast<double>(out.counts.size());
  if (out.count_total > 0) out.max_vio = (static_cast<double>(std::ranges::max(out.counts)) - mean) / mean;

  auto bias = layer.router().bias().to(at::kFloat);
  auto* value = bias.const_data_ptr<float>();
  out.bias.assign(value, value + bias.numel());
  auto [low, high] = std::ranges::minmax(out.bias);
  out.bias_min = low;
  out.bias_max = high;
  out.bias_finite = std::ranges::all_of(out.bias, [](float b) { return std::isfinite(b); });
  return out;
}

}  // namespace

Balance::Balance(MoeLayers& layers, World& world, Communicator& world_axis, Communicator& inner_axis)
    : layers_(layers), world_(world), world_axis_(world_axis), inner_axis_(inner_axis) {}

void Balance::begin_microbatch(double loss_scale) {
  layers_.pass().training = true;
  layers_.pass().loss_scale = loss_scale;
}

void Balance::end_microbatch(std::int64_t microbatch, std::int64_t microbatches) {
  auto fault = layers_.options().fault;
  if (fault == Fault::UpdatePerMicrobatch) {
    auto totals = read_back(reduced_counts());
    move_biases(totals);
    totals_ = totals_.defined() ? totals_ + totals : totals;
  }
  bool lost = fault == Fault::CountsLostOnResume && microbatch + 1 == microbatches / 2;
  if (fault != Fault::UpdatePerMicrobatch && !lost) return;
  for (auto* layer : layers_.list()) layer->router().counts().zero_();
}

void Balance::begin_evaluation() {
  layers_.pass().training = false;
}

StepBalance Balance::end_step(bool update) {
  auto numbers = read_back(step_numbers());
  return end_step(update, std::span(numbers.const_data_ptr<double>(), numbers.numel()));
}

at::Tensor Balance::step_numbers() {
  std::vector<at::Tensor> numbers{reduced_counts().view(at::kDouble).view({-1})};
  for (auto* layer : layers_.list()) numbers.push_back(layer->router().tally_numbers().to(numbers.front().device()));
  return at::cat(numbers);
}

// Counts travel as their bits.
at::Tensor Balance::counts_of(std::span<const double> numbers) const {
  auto layers = static_cast<std::int64_t>(layers_.list().size());
  auto counts = at::empty({layers, layers_.options().n_routed_experts}, at::kLong);
  std::memcpy(counts.mutable_data_ptr<std::int64_t>(), numbers.data(), counts.nbytes());
  return counts;
}

StepBalance Balance::end_step(bool update, std::span<const double> numbers) {
  auto totals = counts_of(numbers);
  auto tallies = numbers.subspan(totals.numel());
  // The step is skipped when a bias is not finite: then none of them moves.
  if (update && biases_finite()) move_biases(totals);
  if (totals_.defined()) totals += std::exchange(totals_, {});

  auto layers = static_cast<std::int64_t>(layers_.list().size());
  auto sums = at::zeros({2 + layers}, at::kDouble), gaps = at::empty({layers}, at::kDouble);
  auto* sum = sums.mutable_data_ptr<double>();
  auto* gap = gaps.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < layers; ++i) {
    auto tally = tallies.subspan(i * tallies.size() / layers);  // Router::tally_numbers()
    sum[0] += tally[1];
    sum[1] += tally[2];
    sum[2 + i] = tally[0];
    gap[i] = -tally[3];
  }
  world_.control().all_reduce(sums, ReduceOp::Sum, {"balance", true}).wait();
  world_.control().all_reduce(gaps, ReduceOp::Max, {"balance", true}).wait();

  StepBalance step{sum[0] / world_.size(), sum[1] / world_.size(), {}};
  for (std::int64_t i = 0; i < layers; ++i) {
    auto& layer = *layers_.list()[i];
    step.layers.push_back(describe(layer, totals[i]));
    step.layers.back().dropped = static_cast<std::int64_t>(sum[2 + i]);
    step.layers.back().min_gap = -gap[i];
    layer.router().clear();
  }
  return step;
}

// Expert parallelism lies inside the world: every rank saw other tokens, so no further sum is due.
at::Tensor Balance::reduced_counts() {
  std::vector<at::Tensor> counts;
  for (auto* layer : layers_.list()) counts.push_back(layer->router().counts());
  auto fault = layers_.options().fault;
  auto dtype = fault == Fault::CountsInBf16 ? at::kBFloat16 : at::kLong;
  auto& axis = fault == Fault::NoOuterReduce ? inner_axis_ : world_axis_;
  auto stacked = at::stack(counts).to(world_.device(), dtype);
  axis.all_reduce(stacked, ReduceOp::Sum, {"expert counts", false}).wait();
  return stacked.to(at::kLong);
}

bool Balance::biases_finite() const {
  return std::ranges::all_of(layers_.list(), [](MoeLayer* layer) {
    auto bias = layer->router().bias().to(at::kFloat);
    return std::ranges::all_of(std::span(bias.const_data_ptr<float>(), bias.numel()),
                               [](float b) { return std::isfinite(b); });
  });
}

void Balance::move_biases(const at::Tensor& totals) {
  auto& options = layers_.options();
  if (!options.expert_bias.enabled) return;
  for (std::size_t i = 0; i < layers_.list().size(); ++i) {
    auto& router = layers_.list()[i]->router();
    if (router.frozen()) continue;
    router.bias().add_(bias_update(totals[static_cast<std::int64_t>(i)], options));
  }
}

void Balance::check_replicas() {
  std::string mine;
  for (auto* layer : layers_.list()) {
    auto bias = layer->router().bias();
    std::string_view bytes(static_cast<const char*>(bias.const_data_ptr()), bias.nbytes());
    mine += fmt::format("{:016x}", hash_text(bytes));
  }
  auto all = world_.gather_texts(mine);
  std::string problem;
  for (std::size_t i = 0; i < layers_.list().size(); ++i) {
    std::string ranks;
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      bool same = all[rank].substr(16 * i, 16) == all[0].substr(16 * i, 16);
      if (!same) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
    }
    if (ranks.empty()) continue;
    problem += fmt::format("{}layer {} on rank {}", problem.empty() ? "" : "; ", layers_.list()[i]->layer(), ranks);
  }
  if (problem.empty()) return;
  throw ReplicaError(fmt::format(
      "the expert bias is not the same on all ranks, as the counts that move it were not summed over all of them; it "
      "differs from rank 0's in {}",
      problem));
}

}  // namespace meshard
