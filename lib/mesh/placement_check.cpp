#include "mesh/placement_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/number_ranges.h"

namespace meshard {

namespace {

constexpr std::size_t kNamedNodes = 4;

/// An axis with groups over several nodes.
struct Spanning {
  Axis axis;
  int size = 0, groups = 0, split = 0;
  std::vector<int> members;        ///< of the first such group
  std::vector<std::string> nodes;  ///< of the first such group
};

Spanning look_at(Axis axis, std::span<const std::string> hosts, const MeshShape& shape) {
  Spanning spanning{.axis = axis, .size = shape.size(axis)};
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    if (shape.coordinate(axis, rank) != 0) continue;
    auto members = shape.members(axis, rank);
    std::vector<std::string> nodes;
    for (int member : members) {
      if (std::ranges::find(nodes, hosts[member]) == nodes.end()) nodes.push_back(hosts[member]);
    }
    ++spanning.groups;
    if (nodes.size() > 1 && spanning.split++ == 0) spanning.members = members, spanning.nodes = nodes;
  }
  return spanning;
}

std::string spanning_text(const Spanning& spanning) {
  auto& [axis, size, groups, split, members, nodes] = spanning;
  auto named = std::span(nodes).first(std::min(nodes.size(), kNamedNodes));
  return fmt::format("{} (size {}) spans nodes in {} of {} groups, as that of ranks {} on {}{}", axis_name(axis), size,
                     split, groups, number_ranges(members), fmt::join(named, ", "),
                     nodes.size() > named.size() ? fmt::format(" and {} more", nodes.size() - named.size()) : "");
}

/// Groups are runs of consecutive ranks: they stay whole where every node takes consecutive ranks, a multiple of
/// `unit`.
std::string mapping_text(const std::map<std::string, int>& counts, int ranks, int fullest, int unit) {
  bool even = std::ranges::all_of(counts, [&](auto& node) { return node.second == fullest; });
  bool whole = std::ranges::all_of(counts, [&](auto& node) { return node.second % unit == 0; });
  if (whole && !even) {
    std::vector<std::string> slots;
    for (auto& [host, count] : counts) slots.push_back(fmt::format("{}:{}", host, count));
    return fmt::format("mpirun -n {} --host {} --map-by slot (srun: --distribution=block)", ranks,
                       fmt::join(slots, ","));
  }
  int per_node = fullest / unit * unit;
  auto nodes = (ranks + per_node - 1) / per_node;
  return fmt::format(
      "mpirun -n {0} --map-by ppr:{1}:node on {2} node{3} (srun: --ntasks-per-node={1} "
      "--distribution=block)",
      ranks, per_node, nodes, nodes == 1 ? "" : "s");
}

std::set<int> set_of(const std::vector<int>& cores) {
  return {cores.begin(), cores.end()};
}

bool contains(const std::set<int>& all, const std::vector<int>& part) {
  return std::ranges::all_of(part, [&](int core) { return all.contains(core); });
}

bool disjoint(const std::set<int>& all, const std::vector<int>& part) {
  return std::ranges::none_of(part, [&](int core) { return all.contains(core); });
}

using NodeRanks = std::vector<int>;

/// The masks of a node, and what becomes of those that overlap when they are joined.
std::set<std::set<int>> core_sets(std::span<const RankCores> ranks, const NodeRanks& node) {
  std::set<std::vector<int>> masks;
  for (int rank : node) masks.insert(ranks[rank].cores);
  std::set<std::set<int>> sets;
  for (auto& mask : masks) {
    auto joined = set_of(mask);
    sets.insert(joined);
    for (bool grows = true; grows;) {
      auto before = joined.size();
      for (auto& other : masks) {
        if (!disjoint(joined, other)) joined.insert(other.begin(), other.end());
      }
      grows = joined.size() > before;
    }
    sets.insert(joined);
  }
  return sets;
}

std::string ranks_text(const NodeRanks& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", number_ranges(ranks));
}

std::string crowded_text(std::span<const RankCores> ranks, const NodeRanks& node, const std::set<int>& cores) {
  NodeRanks inside;
  int threads = 0;
  for (int rank : node) {
    if (!contains(cores, ranks[rank].cores)) continue;
    inside.push_back(rank);
    threads += ranks[rank].threads;
  }
  if (inside.empty() || threads <= static_cast<int>(cores.size())) return "";
  std::vector<int> list(cores.begin(), cores.end());
  return fmt::format(
      "{} on {} run{} {} threads on core{} {}: give each rank cores of its own (mpirun --map-by "
      "slot:PE=T for T threads), fewer threads (run.threads), or the node fewer ranks",
      ranks_text(inside), ranks[inside[0]].host, inside.size() == 1 ? "s" : "", threads, list.size() == 1 ? "" : "s",
      number_ranges(list));
}

std::string overlap_text(std::span<const RankCores> ranks, const NodeRanks& node) {
  std::set<int> involved;
  for (int a : node) {
    auto mask = set_of(ranks[a].cores);
    for (int b : node) {
      if (ranks[a].cores != ranks[b].cores && !disjoint(mask, ranks[b].cores)) involved.insert({a, b});
    }
  }
  if (involved.empty()) return "";
  NodeRanks list(involved.begin(), involved.end());
  return fmt::format(
      "{} on {} are bound to cores that overlap: bind each to its own (mpirun --map-by slot:PE=T "
      "--bind-to core), or none (--bind-to none)",
      ranks_text(list), ranks[list[0]].host);
}

}  // namespace

std::string placement_warning(std::span<const std::string> hosts, const MeshShape& shape) {
  if (static_cast<int>(hosts.size()) != shape.ranks()) {
    throw ArgumentError(fmt::format("placement: {} hosts for {} ranks", hosts.size(), shape.ranks()));
  }
  std::map<std::string, int> counts;
  int fullest = 0;
  for (auto& host : hosts) fullest = std::max(fullest, ++counts[host]);
  std::string spans, rest;
  int unit = 1;
  for (auto axis : {Axis::DpShard, Axis::Expert}) {
    if (shape.size(axis) == 1 || shape.size(axis) > fullest) continue;
    auto spanning = look_at(axis, hosts, shape);
    auto both = std::lcm(unit, spanning.size);
    if (both <= fullest) unit = both;
    if (spanning.split == 0) continue;
    auto& text = both <= fullest ? spans : rest;
    text += (text.empty() ? "" : "; ") + spanning_text(spanning);
  }
  if (!rest.empty()) rest += fmt::format("; nodes of {} ranks cannot hold whole groups of it and of dp_shard", fullest);
  if (spans.empty()) return rest;
  return fmt::format("{}, although a node holds {} ranks. Keep groups within nodes: {}{}{}", spans, fullest,
                     mapping_text(counts, shape.ranks(), fullest, unit), rest.empty() ? "" : ". ", rest);
}

std::vector<std::string> core_warnings(std::span<const RankCores> ranks) {
  std::map<std::string, NodeRanks> nodes;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) nodes[ranks[rank].host].push_back(rank);
  std::vector<std::string> warnings;
  for (auto& [host, node] : nodes) {
    std::set<std::string> crowded;
    for (auto& cores : core_sets(ranks, node)) crowded.insert(crowded_text(ranks, node, cores));
    for (auto& text : crowded) {
      if (!text.empty()) warnings.push_back(text);
    }
    if (auto text = overlap_text(ranks, node); !text.empty()) warnings.push_back(text);
  }
  return warnings;
}

std::vector<SlowOne> slow_ones(std::span<const std::string> names, std::span<const double> rates, double tolerance) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<double>> by_name;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!by_name.contains(names[i])) order.push_back(names[i]);
    by_name[names[i]].push_back(rates[i]);
  }
  std::vector<double> medians;
  for (auto& name : order) medians.push_back(median_of(by_name[name]));
  std::vector<SlowOne> slow;
  auto median = order.empty() ? 0.0 : median_of(medians);
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (medians[i] < (1.0 - tolerance) * median) slow.push_back({order[i], medians[i], median});
  }
  return slow;
}

double median_of(std::vector<double> values) {
  if (values.empty()) throw ArgumentError("median of no values");
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace meshard
