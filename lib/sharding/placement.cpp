#include "sharding/placement.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace meshard {

namespace {

constexpr auto R = Placement::Replicate;
constexpr auto P = Placement::Partial;
constexpr auto S = Placement::Flat;

struct Row {
  Placement params[2], grads[2], optimizer[2];  // [outer, inner]
};

Row row_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::Ddp:
      return {{R, R}, {P, P}, {R, R}};
    case Strategy::Zero1:
      return {{R, R}, {P, P}, {R, S}};
    case Strategy::Zero2:
      return {{R, R}, {P, S}, {R, S}};
    case Strategy::Fsdp:
      return {{S, S}, {S, S}, {S, S}};
    case Strategy::Hsdp:
      return {{R, S}, {P, S}, {R, S}};
    case Strategy::Hfsdp:
      return {{R, S}, {P, S}, {S, S}};
  }
  throw LogicError("unknown strategy");
}

const char* name_of(Placement placement) {
  switch (placement) {
    case R:
      return "Replicate";
    case P:
      return "Partial";
    case S:
      return "Flat";
  }
  throw LogicError("unknown placement");
}

void add_axis(GroupPlacement& placement, Axis axis, const Row& row, int column) {
  placement.axes.push_back(axis);
  placement.params.push_back(row.params[column]);
  placement.grads.push_back(row.grads[column]);
  placement.optimizer.push_back(row.optimizer[column]);
}

}  // namespace

std::string to_string(const Placements& placements) {
  std::string text;
  for (auto placement : placements) text += fmt::format("{}{}", text.empty() ? "" : ",", name_of(placement));
  return fmt::format("[{}]", text);
}

void check_suffix(const Placements& placements) {
  auto first_flat = std::ranges::find(placements, Placement::Flat);
  if (std::any_of(first_flat, placements.end(), [](Placement p) { return p != Placement::Flat; })) {
    throw ArgumentError(
        fmt::format("placements {} are illegal: the Flat axes must form a suffix", to_string(placements)));
  }
}

namespace {

GroupPlacement place_dense(Strategy strategy, const MeshShape& mesh) {
  GroupPlacement placement;
  placement.num_shards = mesh.data_parallel_ranks();
  auto row = row_of(strategy);
  if (strategy == Strategy::Fsdp && mesh.dp_outer() > 1 && mesh.dp_shard() > 1) {
    add_axis(placement, Axis::World, row, 1);
    return placement;
  }
  if (mesh.dp_outer() > 1) add_axis(placement, Axis::DpOuter, row, 0);
  if (mesh.dp_shard() > 1) add_axis(placement, Axis::DpShard, row, 1);
  return placement;
}

GroupPlacement place_experts(Strategy strategy, const MeshShape& mesh) {
  GroupPlacement placement;
  placement.num_shards = mesh.expert_dp();
  bool hybrid = strategy == Strategy::Hsdp || strategy == Strategy::Hfsdp;
  if (mesh.expert_dp() > 1) {
    add_axis(placement, Axis::ExpertDp, row_of(hybrid ? Strategy::Fsdp : strategy), 1);
  }
  return placement;
}

}  // namespace

bool GroupPlacement::gathers() const {
  return std::ranges::find(params, Placement::Flat) != params.end();
}

GroupPlacement place_unit(UnitMesh on, Strategy strategy, const MeshShape& mesh) {
  switch (on) {
    case UnitMesh::Dense:
      return place_dense(strategy, mesh);
    case UnitMesh::Expert:
      return place_experts(strategy, mesh);
  }
  throw LogicError("unknown mesh of a unit");
}

}  // namespace meshard
