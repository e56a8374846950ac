#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "config/run_path.h"
#include "mesh/mesh_text.h"
#include "plan/plan.h"

namespace meshard {

namespace {

std::string scaled(double value, const std::array<const char*, 6>& units) {
  std::size_t unit = 0;
  for (; value >= 1000.0 && unit + 1 < units.size(); ++unit) value /= 1000.0;
  return unit == 0 ? fmt::format("{:.0f}{}", value, units[0]) : fmt::format("{:.3g} {}", value, units[unit]);
}

// Units whose groups have the same layouts: one entry stands for a row of them.
bool alike(const PlannedUnit& a, const PlannedUnit& b) {
  return std::ranges::equal(a.groups, b.groups, [](const GroupPlan& left, const GroupPlan& right) {
    return left.dtype == right.dtype && left.layout.size() == right.layout.size() &&
           left.layout.padding() == right.layout.padding();
  });
}

// How often the `period` units from `first` on stand there in a row: experts and layers take turns.
std::size_t repeats(const std::vector<PlannedUnit>& units, std::size_t first, std::size_t period) {
  std::size_t count = 1;
  for (auto next = first + period; next + period <= units.size(); next += period, ++count) {
    for (std::size_t i = 0; i < period; ++i) {
      if (!alike(units[first + i], units[next + i])) return count;
    }
  }
  return count;
}

// Ranks fill node after node, as mpirun places them by default.
std::string node_lines(const MeshShape& mesh, int ranks_per_node) {
  auto text =
      fmt::format("nodes       {} of {} ranks\n", (mesh.ranks() + ranks_per_node - 1) / ranks_per_node, ranks_per_node);
  std::vector axes{Axis::DpOuter, Axis::DpShard};
  if (mesh.expert() > 1) axes.insert(axes.end(), {Axis::ExpertDp, Axis::Expert});
  for (auto axis : axes) {
    std::set<int> nodes;
    for (int rank : mesh.members(axis, 0)) nodes.insert(rank / ranks_per_node);
    text += fmt::format("  {:<9} {}\n", axis_name(axis),
                        nodes.size() == 1 ? "within a node" : fmt::format("over {} nodes", nodes.size()));
  }
  return text;
}

std::string group_lines(const GroupPlan& group, bool layout) {
  auto& flat = group.layout;
  auto text = fmt::format("    {}  size {}, padding {} ({:.1f} %)\n", dtype_name(group.dtype), flat.size(),
                          flat.padding(), flat.size() ? 100.0 * flat.padding() / flat.size() : 0.0);
  for (int i = 0; layout && i < flat.count(); ++i) {
    std::vector<std::int64_t> elements;
    for (int shard = 0; shard < flat.num_shards(); ++shard) elements.push_back(flat.elements(i, shard).count());
    text += fmt::format("      {:<52} {:<16} offset {:<12} elements {}\n", group.parameters[i].fqn(),
                        fmt::format("{}", flat.shape(i)), flat.offset(i), elements);
  }
  return text;
}

}  // namespace

const char* dtype_name(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? "bf16" : "fp32";
}

std::string human_bytes(std::int64_t bytes) {
  return scaled(static_cast<double>(bytes), {" B", "kB", "MB", "GB", "TB", "PB"});
}

std::string human_count(std::int64_t count) {
  return scaled(static_cast<double>(count), {"", "k", "M", "B", "T", "Q"});
}

std::string plan_text(const Plan& plan, bool layout, int ranks_per_node) {
  auto& mesh = plan.mesh;
  auto text = fmt::format(
      "ranks       {} = {}; experts: {}\n"
      "strategy    {}, {} microbatches a step\n"
      "parameters  {} ({}){}\n",
      mesh.ranks(), dense_text(mesh), expert_text(mesh), to_string(plan.config.parallel.strategy),
      plan.config.accumulation_steps(mesh.data_parallel_ranks()), plan.parameters, human_count(plan.parameters),
      plan.active_parameters == plan.parameters ? "" : fmt::format(", {} active", human_count(plan.active_parameters)));
  // The batch scripts read these three.
  text += fmt::format("run folder  {}\n", run_path(plan.config.run).string());
  if (auto minutes = plan.config.train.max_minutes) text += fmt::format("time limit  {} min\n", *minutes);
  if (int threads = plan.config.run.threads; threads > 0) text += fmt::format("threads     {} a rank\n", threads);
  if (ranks_per_node > 0) text += node_lines(mesh, ranks_per_node);
  text += "units\n";
  for (std::size_t first = 0; first < plan.units.size();) {
    std::size_t period = plan.units[first].kind == ModelUnit::Kind::RoutedExperts ? 2 : 1;
    auto count = layout ? 1 : repeats(plan.units, first, period);
    for (std::size_t i = first; i < first + period; ++i) {
      auto& unit = plan.units[i];
      text += "  " + unit.name;
      if (count > 1) text += fmt::format(" to {}, {} alike", plan.units[i + (count - 1) * period].name, count);
      text += unit.mesh == UnitMesh::Expert ? " (one rank's experts)\n" : "\n";
      for (auto& group : unit.groups) text += group_lines(group, layout);
    }
    first += count * period;
  }
  text += fmt::format("padding     {} in all full buffers\nbytes per rank\n", human_bytes(plan.padding_bytes));
  auto& bytes = plan.bytes;
  for (auto& [name, value] :
       std::initializer_list<std::pair<const char*, std::int64_t>>{{"parameters", bytes.parameters},
                                                                   {"main weights", bytes.main_weights},
                                                                   {"main gradients", bytes.main_grads},
                                                                   {"optimizer", bytes.optimizer},
                                                                   {"unsharded peak", bytes.unsharded_peak},
                                                                   {"activations", bytes.activations},
                                                                   {"total", bytes.total()}}) {
    text += fmt::format("  {:<16} {:>12}\n", name, human_bytes(value));
  }
  text += "sent by one rank per step\n";
  if (plan.traffic.empty()) text += "  nothing\n";
  for (auto& row : plan.traffic) {
    text += fmt::format("  {:<16} {:<10} {:>6} x  {:>12}{}\n", row.operation, row.axis, row.count,
                        human_bytes(row.bytes), row.estimate ? "  (under uniform routing)" : "");
  }
  text.pop_back();
  return text;
}

}  // namespace meshard
