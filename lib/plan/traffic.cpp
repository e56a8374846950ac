#include "plan/traffic.h"

#include <algorithm>

#include "comm/ledger.h"
#include "model/options.h"

namespace meshard {

namespace {

class Adder {
 public:
  Adder(TrafficTable& table, const GroupPlacement& placement, const MeshShape& mesh)
      : table_(table), placement_(placement), mesh_(mesh) {}

  void gather_like(const char* operation, std::size_t axis, std::int64_t full_bytes, std::int64_t count) {
    add(operation, axis, gather_bytes(full_bytes, size(axis)), count);
  }
  void all_reduce(std::size_t axis, std::int64_t full_bytes) {
    add("all_reduce", axis, all_reduce_bytes(full_bytes, size(axis)), 1);
  }
  int size(std::size_t axis) const { return mesh_.size(placement_.axes[axis]); }

 private:
  void add(const char* operation, std::size_t axis, std::int64_t bytes, std::int64_t count) {
    std::string name(axis_name(placement_.axes[axis]));
    auto& row = table_[{operation, name}];
    row.operation = operation;
    row.axis = name;
    row.count += count;
    row.bytes += bytes * count;
  }

  TrafficTable& table_;
  const GroupPlacement& placement_;
  const MeshShape& mesh_;
};

}  // namespace

std::int64_t held(std::int64_t size, const GroupPlacement& group, const Placements& placements, const MeshShape& mesh) {
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis] == Placement::Flat) size /= mesh.size(group.axes[axis]);
  }
  return size;
}

void add_group_traffic(TrafficTable& table, const GroupPlan& group, const GroupPlacement& placement,
                       const MeshShape& mesh, const Precision& precision, std::int64_t microbatches,
                       std::int64_t gathers) {
  using enum Placement;
  Adder adder(table, placement, mesh);
  auto size = group.layout.size();
  auto param = static_cast<std::int64_t>(at::elementSize(precision.param));
  auto wire = static_cast<std::int64_t>(at::elementSize(precision.reduce));
  auto axes = placement.axes.size();

  for (std::size_t axis = 0; axis < axes; ++axis) {
    if (placement.params[axis] == Flat) {
      adder.gather_like("all_gather", axis, size * param, microbatches * gathers);
    }
    if (group.requires_grad && placement.grads[axis] == Flat) {
      adder.gather_like("reduce_scatter", axis, size * wire, microbatches);
    }
  }
  if (!group.requires_grad) return;

  // The rest of the reduction, once: inner axis first, as the runtime goes.
  auto current = held(size, placement, placement.grads, mesh);
  for (auto axis = axes; axis-- > 0;) {
    if (placement.grads[axis] != Partial) continue;
    if (placement.optimizer[axis] == Flat) {
      adder.gather_like("reduce_scatter", axis, current * wire, 1);
      current /= adder.size(axis);
    } else {
      adder.all_reduce(axis, current * wire);
    }
  }
  for (std::size_t axis = 0; axis < axes; ++axis) {
    if (placement.optimizer[axis] == Flat && placement.params[axis] == Replicate) {
      adder.gather_like("all_gather", axis, held(size, placement, placement.params, mesh) * param, 1);
    }
  }
}

void add_moe_traffic(TrafficTable& table, const Config& config, const MeshShape& mesh, std::int64_t layers) {
  auto& moe = *config.model.moe;
  auto add = [&](const char* operation, Axis axis, std::int64_t count, std::int64_t bytes, bool estimate) {
    std::string name(axis_name(axis));
    table[{operation, name}] = {operation, name, count, bytes * count, estimate};
  };
  auto count_bytes = moe.n_routed_experts * static_cast<std::int64_t>(sizeof(std::int64_t));
  if (mesh.ranks() > 1) add("all_reduce", Axis::World, 1, all_reduce_bytes(layers * count_bytes, mesh.ranks()), false);
  if (mesh.expert() == 1) return;

  // Forward and backward each send rows to the experts and back; recomputation does the forward again, but not its
  // counts.
  auto passes = layers * config.accumulation_steps(mesh.data_parallel_ranks());
  bool recompute = config.train.activation_checkpoint == TrainConfig::Checkpointing::Full;
  auto element = static_cast<std::int64_t>(at::elementSize(scalar_type(config.precision.param)));
  auto pairs = config.train.micro_batch_size * config.train.seq_len * moe.num_experts_per_tok;
  add("all_to_all", Axis::Expert, passes, gather_bytes(count_bytes, mesh.expert()), false);
  add("all_to_all_v", Axis::Expert, passes * (recompute ? 6 : 4),
      pairs * (mesh.expert() - 1) / mesh.expert() * config.model.hidden_size * element, true);
}

void add_group_bytes(BytesPerRank& bytes, const GroupPlan& group, const GroupPlacement& placement,
                     const MeshShape& mesh, const Precision& precision, std::int64_t optimizer_bytes_per_element) {
  auto size = group.layout.size();
  auto params = held(size, placement, placement.params, mesh) * at::elementSize(precision.param);
  if (!group.requires_grad) {
    bytes.parameters += params;
    return;
  }
  auto main = held(size, placement, placement.optimizer, mesh);
  bool shared = precision.param == precision.main_param && placement.params == placement.optimizer;
  if (!shared) bytes.parameters += params;
  bytes.main_weights += main * at::elementSize(precision.main_param);
  bytes.optimizer += main * optimizer_bytes_per_element;

  auto pending = held(size, placement, placement.grads, mesh);
  bool second = pending != main;  // else an all-reduce turns one into the other in place
  bytes.main_grads += (pending + (second ? main : 0)) * at::elementSize(precision.main_grad);
}

}  // namespace meshard
