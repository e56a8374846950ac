#include "sharding/gradient_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cmath>
#include <set>

namespace meshard {

namespace {

// Four independent fp64 sums, so that the loop is not bound by the latency of one addition.
double sum_of_squares(const float* values, std::int64_t count) {
  double sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int lane = 0; lane < 4; ++lane) sums[lane] += static_cast<double>(values[i + lane]) * values[i + lane];
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(values[i]) * values[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

double sum_of_squares(const at::Tensor& grad) {
  if (grad.is_cpu() && grad.scalar_type() == at::kFloat) {
    return sum_of_squares(grad.const_data_ptr<float>(), grad.numel());
  }
  auto wide = grad.to(at::kDouble);
  return wide.dot(wide).item<double>();
}

// Names, one a line, of the parameters whose part of `shard` (a flat tensor like the main weights) is not finite.
std::string nonfinite_in(const ParamGroup& group, const at::Tensor& shard) {
  std::string names;
  auto& layout = group.plan().layout;
  auto range = group.main_weights().range();
  for (int i = 0; i < layout.count(); ++i) {
    auto rows = layout.rows_in(i, range);
    auto begin = layout.offset(i) + rows.begin * layout.row_size(i) - range.begin;
    auto part = shard.narrow(0, rows.count() ? begin : 0, rows.count() * layout.row_size(i));
    if (!at::isfinite(part).all().item<bool>()) names += group.plan().parameters[i].fqn() + "\n";
  }
  return names;
}

// Collective over world. The first few distinct names over all ranks.
void add_names(World& world, const std::string& mine, const char* prefix, std::vector<std::string>& names) {
  constexpr std::size_t kFew = 8;
  auto limit = names.size() + kFew;
  for (auto& text : world.gather_texts(mine)) {
    for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      auto name = prefix + text.substr(begin, end - begin);
      if (names.size() < limit && std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
}

std::vector<std::string> find_nonfinite(const ShardingContext& context) {
  std::string weights, gradients;
  for (auto& unit : context.units()) {
    for (auto& group : unit->groups()) {
      if (!group->final_grad().defined()) continue;
      weights += nonfinite_in(*group, group->main_weights().local());
      gradients += nonfinite_in(*group, group->final_grad());
    }
  }
  std::vector<std::string> names;
  auto& world = context.mesh().world();
  add_names(world, weights, "weight ", names);
  add_names(world, gradients, "gradient of ", names);
  return names.empty() ? std::vector<std::string>{"the sum of squares of all gradients (overflow)"} : names;
}

}  // namespace

GradientNorm gradient_norm(const ShardingContext& context) {
  auto squares = at::zeros({static_cast<std::int64_t>(context.units().size())}, at::kDouble);
  auto* sums = squares.mutable_data_ptr<double>();
  for (auto& unit : context.units()) {
    for (auto& group : unit->groups()) {
      if (group->counts_in_sums() && group->final_grad().defined()) *sums += sum_of_squares(group->final_grad());
    }
    ++sums;
  }
  context.mesh().world().control().all_reduce(squares, ReduceOp::Sum, {"gradient norm", true}).wait();

  GradientNorm norm;
  auto* all = squares.const_data_ptr<double>();
  norm.unit_squares.assign(all, all + squares.numel());
  double total = 0.0;
  for (double square : norm.unit_squares) total += square;
  norm.value = std::sqrt(total);
  if (!std::isfinite(total)) norm.nonfinite = find_nonfinite(context);
  return norm;
}

void clip_gradients(const ShardingContext& context, const GradientNorm& norm, double max_norm) {
  double scale = max_norm / (norm.value + 1e-6);
  if (max_norm <= 0.0 || scale >= 1.0) return;
  for (auto& unit : context.units()) {
    for (auto& group : unit->groups()) {
      if (group->final_grad().defined()) group->final_grad().mul_(scale);
    }
  }
}

}  // namespace meshard
