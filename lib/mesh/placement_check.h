#pragma once
// What is wrong with where the ranks of a run were put: axes over node borders, cores that ranks share, slow nodes.
// Pure arithmetic on facts that preflight gathers.

#include <span>
#include <string>
#include <vector>

#include "mesh/mesh_shape.h"

namespace meshard {

/// Local. `hosts[r]`: the node of rank r. Empty, or which of dp_shard and expert have groups that span nodes although a
/// node holds enough ranks for one, and the mapping of mpirun (and of srun) that puts each group into one node; or that
/// none does for both axes. A node holds as many ranks as the fullest one has. ArgumentError unless there is one host
/// per rank of `shape`.
std::string placement_warning(std::span<const std::string> hosts, const MeshShape& shape);

/// Where a rank may compute.
struct RankCores {
  std::string host;
  std::vector<int> cores;  ///< its affinity mask, ascending
  int threads = 1;         ///< that it will run
};

/// Local. One warning per set of cores of a node on which ranks run more threads than it has cores, and one per node
/// whose ranks have masks that overlap without being equal. Ranks that share one mask (a socket, or a whole node) are
/// fine as long as their threads fit.
std::vector<std::string> core_warnings(std::span<const RankCores> ranks);

struct SlowOne {
  std::string name;
  double rate = 0.0;    ///< the median of its rates
  double median = 0.0;  ///< over all names; of two, the larger
};

/// Local. Names (nodes, say, one entry per rank) whose rate is more than `tolerance` below the median over all names;
/// in the order of their first entry. One name alone is never slow.
std::vector<SlowOne> slow_ones(std::span<const std::string> names, std::span<const double> rates, double tolerance);

/// Local. The upper median; ArgumentError for no values.
double median_of(std::vector<double> values);

}  // namespace meshard
