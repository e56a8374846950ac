#pragma once
// The meshes of a run as pure arithmetic: any number of ranks, no MPI (`plan` uses it for 2,048). sharding/DESIGN.md
// section 1.
//
//   mesh    axes                 where a rank lies
//   dense   dp_outer, dp_shard   rank = outer * dp_shard + inner
//   world   world                position = inner * dp_outer + outer, the order in which a 2-D flat buffer is cut
//   expert  expert_dp, expert    rank = expert_dp_rank * ep + expert_rank

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

namespace meshard {

enum class Axis { DpOuter, DpShard, World, ExpertDp, Expert };

struct AxisInfo {
  Axis axis;
  std::string_view name;  ///< in configs, ledgers, files and messages
};

/// Every axis, once, in the order of the enum. A new one is a row here and its arithmetic in MeshShape.
inline constexpr std::array<AxisInfo, 5> kAxes = {{{Axis::DpOuter, "dp_outer"},
                                                   {Axis::DpShard, "dp_shard"},
                                                   {Axis::World, "world"},
                                                   {Axis::ExpertDp, "expert_dp"},
                                                   {Axis::Expert, "expert"}}};

/// Local.
constexpr std::string_view axis_name(Axis axis) {
  return kAxes[static_cast<std::size_t>(axis)].name;
}

class MeshShape {
 public:
  /// Local. Throws ConfigError, naming the numbers, unless all are positive, dp_outer * dp_shard == ranks, and `expert`
  /// divides ranks.
  MeshShape(int ranks, int dp_outer, int dp_shard, int expert = 1);

  int ranks() const { return ranks_; }
  /// Ranks that see different samples. It is this, and not the number of ranks, that a global batch is dealt out to.
  int data_parallel_ranks() const { return dp_outer_ * dp_shard_; }
  /// Local. Which of them world rank `rank` is: outer * dp_shard + inner.
  int data_parallel_rank(int rank) const;
  int dp_outer() const { return dp_outer_; }
  int dp_shard() const { return dp_shard_; }
  int expert_dp() const { return ranks_ / expert_; }
  int expert() const { return expert_; }

  /// Local. Number of ranks along an axis.
  int size(Axis axis) const;
  /// Local. Position of world rank `rank` along `axis`. ArgumentError for a rank outside [0, ranks), here and below.
  int coordinate(Axis axis, int rank) const;
  /// Local. World ranks that share an `axis` communicator with `rank`, in axis order: element i has coordinate i.
  std::vector<int> members(Axis axis, int rank) const;
  /// Local. A number equal for exactly the ranks that share an `axis` communicator: MPI_Comm_split's color.
  int color(Axis axis, int rank) const;

 private:
  int ranks_, dp_outer_, dp_shard_, expert_;
};

}  // namespace meshard
