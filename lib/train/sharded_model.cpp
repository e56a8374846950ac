#include "train/sharded_model.h"

#include "plan/sharding.h"
#include "train/faults.h"
#include "train/initialise.h"

namespace meshard {

ShardedModel shard_model(const Config& config, Mesh& mesh) {
  bool meta = config.init.device == InitConfig::Device::Meta;
  ShardedModel sharded;
  ExpertParallel parallel{config.parallel.expert, mesh.coordinate(Axis::Expert), &mesh.axis(Axis::Expert)};
  sharded.model = build_model(config, meta ? at::kMeta : at::kCPU, parallel);
  auto& lm = *sharded.model.lm;
  if (!meta) initialise_whole(lm, config.run.seed);
  sharded.runtime = std::make_unique<ShardingRuntime>(lm, mesh, config.parallel.prefetch);
  for (auto& unit : model_units(sharded.model)) {
    sharded.runtime->fully_shard(unit.modules, shard_options(config, unit));
  }
  strike_at_start(fault_of(config.regression.fault), lm, scalar_type(config.precision.param));
  return sharded;
}

}  // namespace meshard
