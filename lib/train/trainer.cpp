#include "train/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "train/assemble.h"

namespace meshard {

Trainer::Trainer(const Config& config, CausalLM& model, ShardingContext& context, const Batches& batches,
                 Metrics& metrics, StopRequests& stop, Balance* balance, RoutingTap* tap)
    : config_(config),
      model_(model),
      context_(context),
      world_(context.mesh().world()),
      batches_(batches),
      metrics_(metrics),
      stop_(stop),
      balance_(balance),
      tap_(tap),
      optimizer_(make_optimizer(config)),
      schedule_(schedule_options(config)) {}

Outcome Trainer::run(bool progress) {
  while (steps_done_ < config_.train.steps) {
    if (auto reason = stop_.agreed()) return stopped(*reason);
    world_.enter_phase(fmt::format("step {}", steps_done_ + 1));
    world_.ledger().clear();
    auto record = step();
    bool logged = due(config_.logging.interval) || !record.nonfinite.empty();
    if (logged) metrics_.step(record, world_.ledger(), progress);
    if (config_.regression.guards) check_health(record);
    if (auto outcome = evaluate_if_due()) return *outcome;
  }
  return {kExitDone, "done"};
}

void Trainer::check_health(const StepRecord& record) {
  if (!record.nonfinite.empty() && config_.health.on_nonfinite == HealthConfig::OnNonfinite::Stop) {
    throw NonFiniteError(
        fmt::format("step {}: not finite: {}; the weights are those of step {}; set "
                    "health.on_nonfinite: skip to go on without such steps",
                    record.step, fmt::join(record.nonfinite, ", "), record.step - 1));
  }
  bool last = steps_done_ == config_.train.steps;
  if (balance_ && (steps_done_ % config_.health.interval == 0 || last)) balance_->check_replicas();
}

bool Trainer::due(std::int64_t interval) const {
  return interval > 0 && (steps_done_ % interval == 0 || steps_done_ == config_.train.steps || steps_done_ == 1);
}

std::optional<Outcome> Trainer::evaluate_if_due() {
  auto interval = config_.train.eval_interval;
  bool due = interval > 0 && (steps_done_ % interval == 0 || steps_done_ == config_.train.steps);
  if (!due || batches_.eval_rounds() == 0) return {};
  world_.enter_phase("evaluation");
  auto loss = evaluate();
  if (!loss) return stopped(*stop_.agreed());
  metrics_.evaluation(steps_done_, *loss);
  return {};
}

Outcome Trainer::stopped(const std::string& reason) const {
  return {kExitFailure,
          fmt::format("stopped after step {}: {}; nothing was saved, as this version writes no checkpoints",
                      steps_done_, reason)};
}

}  // namespace meshard
