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

std::vector<PlannedTraffic> traffic_of(const Plan& plan) {
  TrafficTable table;
  auto microbatches = plan.config.accumulation_steps(plan.mesh.data_parallel_ranks());
  for (auto& unit : plan.units) {
    auto gathers = unit.keep == Unit::Keep::Nothing ? 2 : 1;
    for (auto& group : unit.groups) {
      add_group_traffic(table, group, unit.placement, plan.mesh, precision_of(plan.config), microbatches, gathers);
    }
  }
  if (plan.config.model.moe) add_moe_traffic(table, plan.config, plan.mesh, plan.moe_layers);
  std::vector<PlannedTraffic> rows;
  for (auto& [key, row] : table) rows.push_back(row);
  return rows;
}

}  // namespace

Plan make_plan(const Config& config, int ranks) {
  Plan plan{.config = config, .mesh = mesh_shape(config, ranks)};
  auto model = build_model(config, at::kMeta, {plan.mesh.expert(), 0, nullptr});

  ModuleNames names(*model.lm);
  std::set<const Module*> modules;
  std::set<const Slot*> owned;
  for (auto& model_unit : model_units(model)) {
    auto options = shard_options(config, model_unit);
    auto& own = model_unit.modules;
    PlannedUnit unit{unit_name(own, names), model_unit.kind, options.mesh, {}, {}, *options.keep};
    unit.groups =
        plan_groups(own, names, modules, owned, place_unit(options.mesh, options.strategy, plan.mesh).num_shards);
    modules.insert(own.begin(), own.end());
    if (unit.groups.empty()) continue;
    for (auto& group : unit.groups) {
      for (auto& entry : group.parameters) owned.insert(entry.parameter.id());
      // Ranks that hold other experts have buffers of their own.
      auto copies = options.mesh == UnitMesh::Expert ? plan.mesh.expert() : 1;
      plan.padding_bytes += copies * group.layout.padding() * at::elementSize(group.dtype);
    }
    count_parameters(plan, unit);
    plan.units.push_back(std::move(unit));
  }
  plan.moe_layers = model.moe ? static_cast<std::int64_t>(model.moe->list().size()) : 0;
  place_units(plan, config);
  plan.traffic = traffic_of(plan);
  return plan;
}

void place_units(Plan& plan, const Config& config) {
  plan.config = config;
  plan.mesh = mesh_shape(config, plan.mesh.ranks());
  plan.bytes = {};
  auto optimizer_bytes = state_bytes_per_element(config.optimizer.type);
  for (auto& unit : plan.units) {
    auto options = shard_options(config, {{}, unit.kind});
    unit.placement = place_unit(options.mesh, options.strategy, plan.mesh);
    if (unit.mesh != options.mesh) throw LogicError("units that were laid out for another number of expert ranks");
    for (auto& group : unit.groups) {
      if (group.layout.num_shards() != unit.placement.num_shards) {
        throw LogicError("units that were laid out for another number of shards");
      }
      add_group_bytes(plan.bytes, group, unit.placement, plan.mesh, options.precision, optimizer_bytes);
    }
  }
  plan.bytes.unsharded_peak = unsharded_peak(plan.units, config.parallel.prefetch, precision_of(config));
  plan.bytes.activations = activation_bytes(config);
}

}  // namespace meshard
