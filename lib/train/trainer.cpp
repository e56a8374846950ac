#include "train/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "train/options.h"

namespace meshard {

Trainer::Trainer(const Config& config, const TrainerParts& parts, const Progress& begin)
    : config_(config),
      model_(parts.model),
      runtime_(parts.runtime),
      world_(parts.runtime.mesh().world()),
      optimizer_(parts.optimizer),
      batches_(parts.batches),
      metrics_(parts.metrics),
      stop_(parts.stop),
      checkpoints_(parts.checkpoints),
      balance_(parts.balance),
      tap_(parts.tap),
      schedule_(schedule_options(config)),
      began_(begin.step),
      progress_(begin),
      lr_(learning_rate(schedule_, std::max<std::int64_t>(begin.step - 1, 0))) {}

Outcome Trainer::run(bool progress) {
  Outcome outcome;
  try {
    outcome = train(progress);
  } catch (const Error& error) {
    end_in_order(error.code(), error.what());
    throw;
  } catch (const std::exception& error) {
    end_in_order(kExitFailure, error.what());
    throw;
  }
  metrics_.end(outcome.exit_code, progress_.step, outcome.reason);
  return outcome;
}

// After an error. If it is of this rank alone, the others wait for it in some collective until main ends them.
void Trainer::end_in_order(int code, const std::string& reason) {
  constexpr std::chrono::seconds kBrief{2}, kPatient{15};  // what a save is worth on a node that is slow just now
  if (!world_.all_end(checkpoints_.in_flight() ? kPatient : kBrief)) return;
  checkpoints_.settle();
  try {
    metrics_.end(code, progress_.step, reason);
  } catch (const Error&) {  // the first error is the one to tell
  }
}

Outcome Trainer::train(bool progress) {
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
  bool skips = config_.health.on_nonfinite == HealthConfig::OnNonfinite::Skip;
  if (skipped_in_a_row_ >= (skips ? config_.health.max_skipped : 1)) {
    auto remedy = skips ? fmt::format("{} steps in a row were skipped (health.max_skipped); lower optimizer.lr, or go "
                                      "back to an earlier checkpoint",
                                      skipped_in_a_row_)
                        : "set health.on_nonfinite: skip to go on without such steps";
    throw NonFiniteError(fmt::format("step {}: not finite: {}; the weights are those of step {}; {}", record.step,
                                     fmt::join(record.nonfinite, ", "), record.step - skipped_in_a_row_, remedy));
  }
  bool last = progress_.step == config_.train.steps;
  if (balance_ && (progress_.step % config_.health.interval == 0 || last)) balance_->check_replicas();
}

// A finished run that is asked to go on.
Outcome Trainer::done_before() {
  if (config_.train.eval_interval > 0) {
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
  if (!due) return {};
  world_.enter_phase("evaluation");
  auto loss = evaluate();
  if (!loss) return stopped(*stop_.agreed());
  metrics_.evaluation(progress_.step, *loss);
  return {};
}

Outcome Trainer::stopped(const std::string& reason) {
  auto text = fmt::format("stopped after step {}: {}", progress_.step, reason);
  checkpoints_.finish();
  bool saves = config_.checkpoint.on_stop;
  if (saves && progress_.step > 0) checkpoints_.save(progress_, lr_, /*now=*/true);
  auto newest = checkpoints_.newest();
  if (newest == progress_.step && newest > began_) return {kExitRequeue, text + "; its checkpoint is complete"};

  bool trained = progress_.step > began_;
  if (trained) text += saves ? "; its checkpoint failed" : "; checkpoint.on_stop is false";
  if (newest > began_) return {kExitRequeue, fmt::format("{}, so what followed step {} is lost", text, newest)};
  if (trained) {
    text += fmt::format(", so {} lost", began_ > 0 ? fmt::format("what followed step {} is", began_) : "all of it is");
  }
  if (trained && (saves || config_.checkpoint.interval == 0)) return {kExitFailure, text};
  // Another start of the same length would come no further.
  return {kExitFailure, fmt::format("{}; no step was saved; give it more time than {:.0f} s", text,
                                    std::ceil(seconds_of_process()))};
}

}  // namespace meshard
