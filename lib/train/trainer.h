#pragma once
// The training loop of one run.

#include <memory>
#include <string>

#include "base/log.h"
#include "config/config.h"
#include "moe/balance.h"
#include "moe/routing_file.h"
#include "nn/causal_lm.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "sharding/context.h"
#include "sharding/gradient_norm.h"
#include "train/batches.h"
#include "train/metrics.h"
#include "train/stop.h"

namespace meshard {

/// How a run ended.
struct Outcome {
  int exit_code = 0;
  std::string reason;
};

class Trainer {
 public:
  /// Local. Everything passed must outlive the trainer; the model is sharded by `context` and initialised. `balance`
  /// is null for a dense model; `tap`, if not null, is the one that the model's MoE layers use.
  Trainer(const Config& config, CausalLM& model, ShardingContext& context, const Batches& batches, Metrics& metrics,
          StopRequests& stop, Balance* balance = nullptr, RoutingTap* tap = nullptr);

  /// Collective over world. Trains to train.steps or until a stop is agreed. `progress`: lines replace each other.
  /// Throws on every rank, unless the guards are off: NonFiniteError naming the tensors (health.on_nonfinite: stop),
  /// ReplicaError naming the ranks whose expert bias differs.
  Outcome run(bool progress);

  /// Collective over world. One optimizer step on the next global batch.
  StepRecord step();

  /// Collective over world. Mean loss over the held-out windows. Nothing if a stop was agreed meanwhile.
  std::optional<double> evaluate();

  std::int64_t steps_done() const { return steps_done_; }

 private:
  double forward_backward(std::int64_t microbatch, std::int64_t microbatches, StepRecord& record);
  void check_health(const StepRecord& record);
  bool due(std::int64_t interval) const;
  std::optional<Outcome> evaluate_if_due();
  Outcome stopped(const std::string& reason) const;

  const Config& config_;
  CausalLM& model_;
  ShardingContext& context_;
  World& world_;
  const Batches& batches_;
  Metrics& metrics_;
  StopRequests& stop_;
  Balance* balance_;
  RoutingTap* tap_;
  std::unique_ptr<Optimizer> optimizer_;
  ScheduleOptions schedule_;
  std::int64_t steps_done_ = 0;
};

}  // namespace meshard
