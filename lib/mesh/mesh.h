#pragma once
// A MeshShape with communicators.

#include <array>
#include <memory>

#include "comm/world/world.h"
#include "mesh/mesh_shape.h"

namespace meshard {

class Mesh {
 public:
  /// Collective over world. Splits one communicator per axis and checks that each has exactly the members the
  /// arithmetic says, in that order: CommError naming both lists otherwise.
  Mesh(World& world, const MeshShape& shape);

  World& world() const { return *world_; }
  const MeshShape& shape() const { return shape_; }
  int rank() const { return world_->rank(); }

  /// Local. The communicator of an axis (of size 1: a real one of one member, which issues nothing).
  Communicator& axis(Axis axis) const;
  int size(Axis axis) const { return shape_.size(axis); }
  int data_parallel_ranks() const { return shape_.data_parallel_ranks(); }
  int data_parallel_rank() const { return shape_.data_parallel_rank(rank()); }
  int coordinate(Axis axis) const { return shape_.coordinate(axis, rank()); }

 private:
  World* world_;
  MeshShape shape_;
  std::array<std::unique_ptr<Communicator>, kAxes.size()> axes_;
};

/// Collective over world. All ranks must have been given the same config: compares a hash of `resolved_config` and
/// throws ConfigError naming the ranks that differ from rank 0 (the same error on every rank).
void check_same_config(World& world, const std::string& resolved_config);

}  // namespace meshard
