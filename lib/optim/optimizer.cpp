#include "optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <set>

#include "base/error.h"

namespace meshard {

namespace {
void check_flat(const FlatShard& shard, const char* what, const at::Tensor& tensor) {
  bool flat = tensor.defined() && tensor.dim() == 1 && tensor.is_contiguous() && tensor.is_floating_point();
  if (!flat) throw ShapeError(fmt::format("optimizer: the {} of {} is not a flat floating tensor", what, shard.name));
}

void check_weight(const FlatShard& shard) {
  check_flat(shard, "weight", shard.weight);
  for (auto& run : shard.runs) {
    if (run.begin < 0 || run.begin > run.end || run.end > shard.weight.numel()) {
      throw ShapeError(fmt::format("optimizer: run [{}, {}) of {} lies outside its {} elements", run.begin, run.end,
                                   shard.name, shard.weight.numel()));
    }
  }
}

void check_grad(const FlatShard& shard) {
  if (shard.runs.empty()) return;
  if (!shard.grad.defined()) {
    throw LogicError(
        fmt::format("optimizer: {} has no gradient; a step needs a backward through every unit first", shard.name));
  }
  check_flat(shard, "gradient", shard.grad);
  if (shard.grad.numel() != shard.weight.numel() || shard.grad.scalar_type() != shard.weight.scalar_type()) {
    throw ShapeError(fmt::format("optimizer: {} has {} weights of {} but {} gradients of {}", shard.name,
                                 shard.weight.numel(), c10::toString(shard.weight.scalar_type()), shard.grad.numel(),
                                 c10::toString(shard.grad.scalar_type())));
  }
}
}  // namespace

void Optimizer::step(std::span<const FlatShard> shards, double lr, double grad_scale) {
  for (auto& shard : shards) check_grad(shard);
  allocate(shards);
  ++steps_;
  at::NoGradGuard no_grad;
  for (auto& shard : shards) update(shard, {lr, grad_scale});
}

std::optional<at::Tensor> Optimizer::StepArguments::divisor(const FlatShard& shard) const {
  if (grad_scale == 1.0) return std::nullopt;
  return at::full({}, 1.0 / grad_scale, shard.weight.options().dtype(at::kFloat));
}

void Optimizer::allocate(std::span<const FlatShard> shards) {
  std::set<std::string> names;
  for (auto& shard : shards) {
    check_weight(shard);
    if (!names.insert(shard.name).second)
      throw LogicError(fmt::format("optimizer: two shards are named {}", shard.name));
    if (steps_ > 0 && !has_state(shard)) {
      throw LogicError(
          fmt::format("optimizer: {} is new at step {}; every step takes the same shards", shard.name, steps_ + 1));
    }
  }
  for (auto& shard : shards) {
    if (!has_state(shard)) allocate_state(shard);
  }
}

}  // namespace meshard
