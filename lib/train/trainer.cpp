#include "train/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "train/assemble.h"

namespace meshard {

Trainer::Trainer(const Config& config, const TrainerParts& parts, const Progress& begin)
    : config_(config),
      model_(parts.model),
      context_(parts.context),
      world_(parts.context.mesh().world()),
      optimizer_(parts.optimizer),
      batches_(parts.batches),
      metrics_(parts.metrics),
      stop_(parts.stop),
      checkpoints_(parts.checkpoints),
      balance_(parts.balance),
      tap_(parts.tap),
      schedule_(schedule_options(config)),
      progress_(begin),
      lr_(learning_rate(schedule_, std::max<std::int64_t>(begin.step - 1, 0))) {}

Outcome Trainer::run(bool progress) {
  if (progress_.step >= config_.train.steps) return done_before();
  while (progress_.step < config_.train.steps) {
    if (auto reason = stop_.agreed()) return stopped(*reason);
    world_.enter_phase(fmt::format("step {}", progress_.step + 1));
    world_.ledger().clear();
    auto record = step();
    bool logged = due(config_.logging.interval) || !record.nonfinite.empty();
    if (logged) metrics_.step(record, world_.ledger(), progress);
    if (config_.regression.guards) check_health(record);
    if (auto outcome = evaluate_if_due()) return *outcome;
    checkpoint_if_due();
    slowest_step_ = std::max(slowest_step_, record.seconds);
    if (config_.checkpoint.on_stop) stop_.reserve(slowest_step_ + checkpoints_.seconds_to_stop());
  }
  checkpoints_.finish();
  return {kExitDone, "done"};
}

void Trainer::checkpoint_if_due() {
  checkpoints_.poll();
  auto interval = config_.checkpoint.interval;
  bool last = progress_.step == config_.train.steps;
  if (interval > 0 && (progress_.step % interval == 0 || last)) checkpoints_.save(progress_, lr_);
}

void Trainer::check_health(const StepRecord& record) {
  if (!record.nonfinite.empty() && config_.health.on_nonfinite == HealthConfig::OnNonfinite::Stop) {
    throw NonFiniteError(
        fmt::format("step {}: not finite: {}; the weights are those of step {}; set "
                    "health.on_nonfinite: skip to go on without such steps",
                    record.step, fmt::join(record.nonfinite, ", "), record.step - 1));
  }
  bool last = progress_.step == config_.train.steps;
  if (balance_ && (progress_.step % config_.health.interval == 0 || last)) balance_->check_replicas();
}

// A finished run that is asked to go on.
Outcome Trainer::done_before() {
  if (config_.train.eval_interval > 0 && batches_.eval_rounds() > 0) {
    auto loss = evaluate();
    if (!loss) return stopped(*stop_.agreed());
    metrics_.evaluation(progress_.step, *loss);
  }
  bool saves = config_.checkpoint.interval > 0 && progress_.step > 0;  // begun from another folder's checkpoint
  if (saves) checkpoints_.save(progress_, lr_, /*now=*/true);
  return {kExitDone, fmt::format("all {} steps were done before", config_.train.steps)};
}

bool Trainer::due(std::int64_t interval) const {
  return interval > 0 &&
         (progress_.step % interval == 0 || progress_.step == config_.train.steps || progress_.step == 1);
}

std::optional<Outcome> Trainer::evaluate_if_due() {
  auto interval = config_.train.eval_interval;
  bool due = interval > 0 && (progress_.step % interval == 0 || progress_.step == config_.train.steps);
  if (!due || batches_.eval_rounds() == 0) return {};
  world_.enter_phase("evaluation");
  auto loss = evaluate();
  if (!loss) return stopped(*stop_.agreed());
  metrics_.evaluation(progress_.step, *loss);
  return {};
}

Outcome Trainer::stopped(const std::string& reason) {
  auto when = fmt::format("stopped after step {}: {}", progress_.step, reason);
  checkpoints_.finish();
  if (progress_.step == 0) return {kExitRequeue, when + "; there was nothing to save"};
  if (config_.checkpoint.on_stop) checkpoints_.save(progress_, lr_, /*now=*/true);
  if (checkpoints_.newest() == progress_.step) return {kExitRequeue, when + "; its checkpoint is complete"};
  auto why = config_.checkpoint.on_stop ? "its checkpoint failed" : "checkpoint.on_stop is false";
  return {kExitFailure,
          fmt::format("{}; {}, so {} lost", when, why,
                      checkpoints_.newest() > 0 ? fmt::format("what followed step {} is", checkpoints_.newest())
                                                : "all of it is")};
}

}  // namespace meshard
