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

// `held`: elements `elements` of this rank's tensor, in flat memory.
std::vector<Piece> pieces_of(const TensorPart& part, const IndexRange& elements, const at::Tensor& held) {
  std::vector<Piece> pieces;
  std::int64_t taken = 0;
  for (auto& box : part.boxes(elements)) {
    auto count = box.numel();
    pieces.push_back({box, held.narrow(0, taken, count).view(box.sizes)});
    taken += count;
  }
  return pieces;
}

}  // namespace

std::vector<StateTensor> group_tensors(const ParamGroup& group, const Mesh& mesh, const at::Tensor& flat,
                                       const PathOf& path, bool every_name) {
  auto& main = group.main_weights();
  auto replicas = replicas_of(group, mesh);
  std::vector<StateTensor> tensors;
  for (int i = 0; i < main.layout().count(); ++i) {
    auto& parameter = group.plan().parameters[i];
    auto& part = parameter.parameter.slot().part;
    auto pieces = pieces_of(part, main.elements(i), main.part_of(flat, i));
    for (auto& fqn : parameter.fqns) {
      auto names = path(fqn);
      tensors.push_back({flat_key(names), names, flat.scalar_type(), part.whole_shape(), pieces, replicas});
      if (!every_name) break;
    }
  }
  return tensors;
}

StateDict model_state(const ShardingRuntime& runtime) {
  StateDict state;
  auto path = [](const std::string& fqn) { return std::vector<PathElement>{"model", fqn}; };
  for (auto& unit : runtime.units()) {
    for (auto& group : unit->groups()) {
      std::ranges::move(group_tensors(*group, runtime.mesh(), group->main_weights().local(), path, true),
                        std::back_inserter(state.tensors));
    }
  }
  walk(runtime.root(), [&](const std::string& fqn, Module& module) {
    for (auto& buffer : module.buffers()) {
      if (!buffer.persistent) continue;
      state.tensors.push_back(
          replicated_tensor(path(join_name(fqn, buffer.name)), buffer.tensor, runtime.mesh().world().size()));
    }
  });
  return state;
}

}  // namespace meshard
