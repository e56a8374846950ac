#include "plan/plan.h"

#include <set>

#include "base/error.h"
#include "model/build.h"
#include "plan/activations.h"
#include "plan/sharding.h"
#include "plan/traffic.h"
#include "plan/unsharded_peak.h"

namespace meshard {

namespace {

std::int64_t state_bytes_per_element(OptimizerConfig::Type type) {
  switch (type) {
    case OptimizerConfig::Type::AdamW:
      return 8;
    case OptimizerConfig::Type::Sgd:
      return 0;
  }
  throw LogicError("unknown optimizer");
}

void count_parameters(Plan& plan, const PlannedUnit& unit) {
  std::int64_t held = 0;
  for (auto& group : unit.groups) {
    for (int i = 0; i < group.layout.count(); ++i) held += group.layout.numel(i);
  }
  auto all = unit.mesh == UnitMesh::Expert ? held * plan.mesh.expert() : held;
  plan.parameters += all;
  auto& moe = plan.config.model.moe;
  plan.active_parameters +=
      unit.kind == ModelUnit::Kind::RoutedExperts ? all / moe->n_routed_experts * moe->num_experts_per_tok : all;
}

}  // namespace

Plan make_plan(const Config& config, int ranks) {
  Plan plan{config, mesh_shape(config, ranks), {}, 0, 0, 0, {}, {}};
  auto model = build_model(config, at::kMeta, {plan.mesh.expert(), 0, nullptr});
  auto microbatches = config.accumulation_steps(plan.mesh.data_parallel_ranks());
  auto optimizer_bytes = state_bytes_per_element(config.optimizer.type);

  ModuleNames names(*model.lm);
  std::set<const Module*> modules;
  std::set<const Slot*> owned;
  TrafficTable traffic;
  Precision precision;
  for (auto& model_unit : model_units(model)) {
    auto options = shard_options(config, model_unit);
    auto& own = model_unit.modules;
    PlannedUnit unit{unit_name(own, names), model_unit.kind, options.mesh, {}, {}, *options.keep};
    unit.placement = place_unit(options.mesh, options.strategy, plan.mesh);
    unit.groups = plan_groups(own, names, modules, owned, unit.placement.num_shards);
    modules.insert(own.begin(), own.end());
    if (unit.groups.empty()) continue;
    auto gathers = unit.keep == Unit::Keep::Nothing ? 2 : 1;
    for (auto& group : unit.groups) {
      for (auto& entry : group.parameters) owned.insert(entry.parameter.id());
      // Ranks that hold other experts have buffers of their own.
      auto copies = options.mesh == UnitMesh::Expert ? plan.mesh.expert() : 1;
      plan.padding_bytes += copies * group.layout.padding() * at::elementSize(group.dtype);
      add_group_traffic(traffic, group, unit.placement, plan.mesh, options.precision, microbatches, gathers);
      add_group_bytes(plan.bytes, group, unit.placement, plan.mesh, options.precision, optimizer_bytes);
    }
    count_parameters(plan, unit);
    plan.units.push_back(std::move(unit));
    precision = options.precision;
  }
  plan.bytes.unsharded_peak = unsharded_peak(plan.units, config.parallel.prefetch, precision);
  if (model.moe) add_moe_traffic(traffic, config, plan.mesh, static_cast<std::int64_t>(model.moe->list().size()));
  plan.bytes.activations = activation_bytes(config);
  for (auto& [key, row] : traffic) plan.traffic.push_back(row);
  return plan;
}

}  // namespace meshard
