#include "plan/plan.h"

#include <algorithm>
#include <set>

#include "plan/activations.h"
#include "plan/assemble.h"
#include "plan/traffic.h"

namespace meshard {

namespace {

std::int64_t group_elements(const PlannedUnit& unit) {
  std::int64_t sum = 0;
  for (auto& group : unit.groups) sum += group.layout.size();
  return sum;
}

// The pool's peak. Gathered: the root, and the units in flight (the one that computes and those fetched ahead). Full
// gradients: the root's through the whole backward, one unit's being filled and one on the way.
std::int64_t unsharded_peak(const Plan& plan, const GroupPlacement& placement, const Precision& precision) {
  auto param = static_cast<std::int64_t>(at::elementSize(precision.param));
  auto wire = static_cast<std::int64_t>(at::elementSize(precision.reduce));
  std::vector<std::int64_t> sizes;
  for (auto& unit : plan.units) {
    if (!unit.kept_gathered) sizes.push_back(group_elements(unit));
  }
  std::ranges::sort(sizes, std::greater{});
  auto largest = [&](std::size_t count) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < std::min(count, sizes.size()); ++i) sum += sizes[i];
    return sum;
  };
  auto root = group_elements(plan.units.back());
  std::int64_t peak = 0;
  if (placement.gathers()) peak += (root + largest(1 + plan.config.parallel.prefetch)) * param;
  bool reduces = std::ranges::find(placement.grads, Placement::Flat) != placement.grads.end();
  if (reduces) peak += (root + largest(2)) * wire;
  return peak;
}

}  // namespace

Plan make_plan(const Config& config, int ranks) {
  require_supported(config);
  Plan plan{config, mesh_shape(config, ranks), {}, 0, 0, {}, {}};
  auto model = build_model(config, at::kMeta);
  auto options = shard_options(config);
  auto placement = place_dense(options.strategy, plan.mesh);
  auto optimizer_bytes = config.optimizer.type == OptimizerConfig::Type::AdamW ? 8 : 0;

  ModuleNames names(*model);
  std::set<const Module*> modules;
  std::set<const Slot*> owned;
  TrafficTable traffic;
  for (auto* module : unit_modules(*model)) {
    bool root = module == model.get();
    PlannedUnit unit{root ? "root" : names.of(*module), root, plan_groups(*module, names, modules, owned, ranks)};
    for (auto& group : unit.groups) {
      for (auto& entry : group.parameters) owned.insert(entry.parameter.id());
      for (int i = 0; i < group.layout.count(); ++i) plan.parameters += group.layout.numel(i);
      plan.padding_bytes += group.layout.padding() * at::elementSize(group.dtype);
      add_group_traffic(traffic, group, placement, plan.mesh, options.precision, config.accumulation_steps(ranks),
                        root);
      add_group_bytes(plan.bytes, group, placement, plan.mesh, options.precision, optimizer_bytes);
    }
    modules.insert(module);
    plan.units.push_back(std::move(unit));
  }
  plan.bytes.unsharded_peak = unsharded_peak(plan, placement, options.precision);
  plan.bytes.activations = activation_bytes(config);
  for (auto& [key, row] : traffic) plan.traffic.push_back(row);
  return plan;
}

}  // namespace meshard
