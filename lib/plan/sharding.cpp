#include "plan/sharding.h"

#include "base/error.h"

namespace meshard {

MeshShape mesh_shape(const Config& config, int ranks) {
  return MeshShape(ranks, config.parallel.dp_outer, config.parallel.dp_shard, config.parallel.expert);
}

Precision precision_of(const Config& config) {
  return {scalar_type(config.precision.param), scalar_type(config.precision.main_param),
          scalar_type(config.precision.main_grad), scalar_type(config.precision.reduce)};
}

namespace {

Unit::Keep keep_of(ModelUnit::Kind kind) {
  switch (kind) {
    case ModelUnit::Kind::Embedding:
      return Unit::Keep::Unneeded;
    case ModelUnit::Kind::Layer:
    case ModelUnit::Kind::RoutedExperts:
      return Unit::Keep::Nothing;
    case ModelUnit::Kind::Head:  // the forward ends where the backward begins
    case ModelUnit::Kind::Root:
      return Unit::Keep::Gathered;
  }
  throw LogicError("unknown kind of unit");
}

}  // namespace

ShardOptions shard_options(const Config& config, const ModelUnit& unit) {
  ShardOptions options;
  options.strategy = config.parallel.strategy;
  options.precision = precision_of(config);
  options.keep = keep_of(unit.kind);
  bool on_expert_mesh = unit.kind == ModelUnit::Kind::RoutedExperts && config.parallel.expert > 1;
  options.mesh = on_expert_mesh ? UnitMesh::Expert : UnitMesh::Dense;
  bool unscaled = fault_of(config.regression.fault) == Fault::ExpertGradUnscaled;
  if (on_expert_mesh && !unscaled) options.grad_divisor = config.parallel.expert;
  return options;
}

}  // namespace meshard
