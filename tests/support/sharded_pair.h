#pragma once
// A module, plain and sharded, with the same values: what tests compare.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>

#include <map>

#include "sharding/runtime.h"
#include "support/mpi_test.h"

namespace meshard {

/// Local. Fixed values that differ for every element and parameter.
inline at::Tensor test_values(at::IntArrayRef shape, double salt) {
  std::int64_t numel = 1;
  for (auto size : shape) numel *= size;
  return (at::arange(numel, at::kDouble) * 0.7 + salt).sin().to(at::kFloat).view(shape);
}

/// Local. Fills every parameter of a plain module.
inline void fill_plain(Module& module) {
  double salt = 0.0;
  for (auto& [name, parameter] : named_parameters(module)) {
    parameter.tensor().detach().copy_(test_values(parameter.slot().shape, salt += 1.0));
  }
}

/// Collective. Every axis that shards it, gathered.
inline DBuffer gather_buffer(DBuffer buffer) {
  auto to = buffer.placements();
  for (auto& placement : to) {
    if (placement != Placement::Flat) continue;
    placement = Placement::Replicate;
    buffer = buffer.redistribute(to);
  }
  return buffer;
}

inline std::map<std::string, at::Tensor> by_name(const GroupPlan& plan, const DBuffer& full) {
  std::map<std::string, at::Tensor> tensors;
  for (int i = 0; i < full.layout().count(); ++i)
    tensors[plan.parameters[i].fqn()] =
        full.get_local(i).view(full.layout().shape(i)).to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  return tensors;
}

/// Collective. The final gradients of a model, whole, by FQN.
inline std::map<std::string, at::Tensor> full_gradients(const ShardingRuntime& runtime) {
  std::map<std::string, at::Tensor> all;
  for (auto& unit : runtime.units()) {
    for (auto& group : unit->groups()) {
      if (!group->final_grad().defined()) continue;
      auto& main = group->main_weights();
      auto grad = DBuffer::from_local(group->final_grad(), main.layout_ptr(), main.axes(), main.placements());
      all.merge(by_name(group->plan(), gather_buffer(grad)));
    }
  }
  return all;
}

/// Collective. The main weights, whole, by FQN.
inline std::map<std::string, at::Tensor> full_weights(const ShardingRuntime& runtime) {
  std::map<std::string, at::Tensor> all;
  for (auto& unit : runtime.units()) {
    for (auto& group : unit->groups()) all.merge(by_name(group->plan(), gather_buffer(group->main_weights())));
  }
  return all;
}

/// Every way to factor a world of `ranks` into dp_outer x dp_shard.
inline std::vector<MeshShape> factorings(int ranks) {
  std::vector<MeshShape> shapes;
  for (int outer = 1; outer <= ranks; ++outer) {
    if (ranks % outer == 0) shapes.push_back({ranks, outer, ranks / outer});
  }
  return shapes;
}

inline constexpr Strategy kStrategies[] = {Strategy::Ddp,  Strategy::Zero1, Strategy::Zero2,
                                           Strategy::Fsdp, Strategy::Hsdp,  Strategy::Hfsdp};

}  // namespace meshard
