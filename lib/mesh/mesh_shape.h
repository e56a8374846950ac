#pragma once
// The meshes of a run as pure arithmetic: any number of ranks, no MPI (`plan` uses it for 2,048). sharding.md
// section 1.
//
//   dense   rank = outer * dp_shard + inner                      axes dp_outer, dp_shard
//   world   position = inner * dp_outer + outer                  axis world: the order in which a 2-D flat buffer is
//   cut expert  rank = expert_dp_rank * ep + expert_rank             axes expert_dp, expert

#include <string_view>
#include <vector>

namespace meshard {

enum class Axis { DpOuter, DpShard, World, ExpertDp, Expert };

/// Local. dp_outer, dp_shard, world, expert_dp, expert.
std::string_view axis_name(Axis axis);

class MeshShape {
 public:
  /// Local. Throws ConfigError, naming the numbers, unless all are positive, dp_outer * dp_shard == ranks, and `expert`
  /// divides ranks.
  MeshShape(int ranks, int dp_outer, int dp_shard, int expert = 1);

  int ranks() const { return ranks_; }
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
