#include "checkpoint/sharded_state.h"

#include <algorithm>
#include <numeric>

namespace meshard {

namespace {

// World ranks that hold the same part of the group's main weights.
std::vector<int> replicas_of(const ParamGroup& group, const Mesh& mesh) {
  auto& main = group.main_weights();
  std::vector<int> replicas{mesh.rank()};
  int replicated = 0;
  for (std::size_t axis = 0; axis < main.axes().size(); ++axis) {
    if (main.placements()[axis] == Placement::Flat) continue;
    auto members = main.axes()[axis]->members();
    replicas.assign(members.begin(), members.end());
    ++replicated;
  }
  if (replicated > 1) {  // both dense axes: everyone
    replicas.resize(mesh.world().size());
    std::iota(replicas.begin(), replicas.end(), 0);
  }
  std::ranges::sort(replicas);
  return replicas;
}

Shape global_shape(const Slot& slot) {
  auto shape = slot.shape;
  if (slot.global_rows > 0) shape.front() = slot.global_rows;
  if (slot.rows_per_item == 0) return shape;
  return {shape[0] / slot.rows_per_item, slot.rows_per_item, shape[1]};
}

// `rows`: this rank's rows of the parameter, a view of flat memory.
std::vector<Piece> pieces_of(const Slot& slot, std::int64_t first_row, const at::Tensor& rows) {
  std::vector<Piece> pieces;
  if (rows.size(0) == 0) return pieces;
  if (slot.rows_per_item == 0) {
    Box box{Shape(slot.shape.size(), 0), rows.sizes().vec()};
    box.offsets.front() = first_row;
    pieces.push_back({std::move(box), rows});
    return pieces;
  }
  std::int64_t taken = 0;
  for (auto& box : boxes_of_rows(first_row, rows.size(0), slot.rows_per_item, slot.shape[1])) {
    auto count = box.sizes[0] * box.sizes[1];
    pieces.push_back({box, rows.narrow(0, taken, count).view(box.sizes)});
    taken += count;
  }
  return pieces;
}

}  // namespace

std::vector<StateTensor> group_tensors(const ParamGroup& group, const Mesh& mesh, const at::Tensor& flat,
                                       const PathOf& path, bool every_name) {
  auto& layout = group.plan().layout;
  auto range = group.main_weights().range();
  auto replicas = replicas_of(group, mesh);
  std::vector<StateTensor> tensors;
  for (int i = 0; i < layout.count(); ++i) {
    auto& parameter = group.plan().parameters[i];
    auto& slot = parameter.parameter.slot();
    auto rows = layout.rows_in(i, range);
    auto begin = rows.count() ? layout.offset(i) + rows.begin * layout.row_size(i) - range.begin : 0;
    auto sizes = slot.shape;
    sizes.front() = rows.count();
    auto held = flat.narrow(0, begin, rows.count() * layout.row_size(i)).view(sizes);
    auto pieces = pieces_of(slot, slot.first_row + rows.begin, held);
    for (auto& fqn : parameter.fqns) {
      auto names = path(fqn);
      tensors.push_back({flat_key(names), names, flat.scalar_type(), global_shape(slot), pieces, replicas});
      if (!every_name) break;
    }
  }
  return tensors;
}

StateDict model_state(const ShardingContext& context) {
  StateDict state;
  auto path = [](const std::string& fqn) { return std::vector<PathElement>{"model", fqn}; };
  for (auto& unit : context.units()) {
    for (auto& group : unit->groups()) {
      std::ranges::move(group_tensors(*group, context.mesh(), group->main_weights().local(), path, true),
                        std::back_inserter(state.tensors));
    }
  }
  walk(context.root(), [&](const std::string& fqn, Module& module) {
    for (auto& buffer : module.buffers()) {
      if (!buffer.persistent) continue;
      state.tensors.push_back(
          replicated_tensor(path(join_name(fqn, buffer.name)), buffer.tensor, context.mesh().world().size()));
    }
  });
  return state;
}

}  // namespace meshard
