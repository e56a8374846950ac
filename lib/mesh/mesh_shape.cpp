#include "mesh/mesh_shape.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshard {

MeshShape::MeshShape(int ranks, int dp_outer, int dp_shard, int expert)
    : ranks_(ranks), dp_outer_(dp_outer), dp_shard_(dp_shard), expert_(expert) {
  if (ranks < 1 || dp_outer < 1 || dp_shard < 1 || expert < 1) {
    throw ConfigError(fmt::format("mesh: ranks {}, dp_outer {}, dp_shard {} and expert {} must all be at least 1",
                                  ranks, dp_outer, dp_shard, expert));
  }
  if (static_cast<long>(dp_outer) * dp_shard != ranks) {
    throw ConfigError(fmt::format("mesh: dp_outer {} x dp_shard {} = {} is not the {} ranks of this run", dp_outer,
                                  dp_shard, static_cast<long>(dp_outer) * dp_shard, ranks));
  }
  if (ranks % expert != 0) {
    throw ConfigError(fmt::format("mesh: expert {} does not divide the {} ranks of this run", expert, ranks));
  }
}

int MeshShape::size(Axis axis) const {
  switch (axis) {
    case Axis::DpOuter:
      return dp_outer_;
    case Axis::DpShard:
      return dp_shard_;
    case Axis::World:
      return ranks_;
    case Axis::ExpertDp:
      return expert_dp();
    case Axis::Expert:
      return expert_;
  }
  throw ArgumentError("MeshShape::size: not an axis");
}

int MeshShape::coordinate(Axis axis, int rank) const {
  if (rank < 0 || rank >= ranks_) throw ArgumentError(fmt::format("mesh: rank {} of {} ranks", rank, ranks_));
  int outer = rank / dp_shard_, inner = rank % dp_shard_;
  switch (axis) {
    case Axis::DpOuter:
      return outer;
    case Axis::DpShard:
      return inner;
    case Axis::World:
      return inner * dp_outer_ + outer;
    case Axis::ExpertDp:
      return rank / expert_;
    case Axis::Expert:
      return rank % expert_;
  }
  throw ArgumentError("MeshShape::coordinate: not an axis");
}

int MeshShape::data_parallel_rank(int rank) const {
  return coordinate(Axis::DpOuter, rank) * dp_shard_ + coordinate(Axis::DpShard, rank);
}

int MeshShape::color(Axis axis, int rank) const {
  switch (axis) {
    case Axis::DpOuter:
      return coordinate(Axis::DpShard, rank);
    case Axis::DpShard:
      return coordinate(Axis::DpOuter, rank);
    case Axis::World:
      return 0;
    case Axis::ExpertDp:
      return coordinate(Axis::Expert, rank);
    case Axis::Expert:
      return coordinate(Axis::ExpertDp, rank);
  }
  throw ArgumentError("MeshShape::color: not an axis");
}

std::vector<int> MeshShape::members(Axis axis, int rank) const {
  std::vector<int> members(size(axis));
  int color = this->color(axis, rank);
  for (int other = 0; other < ranks_; ++other) {
    if (this->color(axis, other) == color) members[coordinate(axis, other)] = other;
  }
  return members;
}

}  // namespace meshard
