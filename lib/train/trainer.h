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
#include "sharding/gradient_norm.h"
#include "sharding/runtime.h"
#include "train/batches.h"
#include "train/checkpoints.h"
#include "train/metrics.h"
#include "train/stop.h"

namespace meshard {

/// How a run ended.
struct Outcome {
  int exit_code = 0;
  std::string reason;
};

/// What a trainer works with; all of it must outlive the trainer. The model is sharded by `runtime` and has its
/// weights.
struct TrainerParts {
  CausalLM& model;
  ShardingRuntime& runtime;
  Optimizer& optimizer;
  const Batches& batches;
  Metrics& metrics;
  StopRequests& stop;
  Checkpoints& checkpoints;
  Balance* balance = nullptr;  ///< null: a dense model
  RoutingTap* tap = nullptr;   ///< the one that the MoE layers use, if routing is recorded or replayed
};

class Trainer {
 public:
  /// Local. `begin`: how far an earlier part of the run came.
  Trainer(const Config& config, const TrainerParts& parts, const Progress& begin = {});

  /// Collective over world. Trains to train.steps or until a stop is agreed, and notes the end in the metrics.
  /// `progress`: lines replace each other. A stop ends with kExitRequeue only if a checkpoint is complete that is newer
  /// than `begin`. Throws on every rank, unless the guards are off: NonFiniteError naming the tensors
  /// (health.on_nonfinite: stop, or health.max_skipped steps in a row), ReplicaError naming the ranks whose expert bias
  /// differs. Whatever it throws, a save in flight has been completed, if all ranks throw; else it stays a `.partial`
  /// folder, and the end is not noted.
  Outcome run(bool progress);

  /// Collective over world. One optimizer step on the next global batch.
  StepRecord step();

  /// Collective over world. Mean loss over the held-out windows. Nothing if a stop was agreed meanwhile.
  std::optional<double> evaluate();

  std::int64_t steps_done() const { return progress_.step; }

 private:
  Outcome train(bool progress);
  void end_in_order(int code, const std::string& reason);
  at::Tensor forward_backward(std::int64_t microbatch, std::int64_t microbatches, StepRecord& record);
  void check_health(const StepRecord& record);
  bool due(std::int64_t interval) const;
  std::optional<Outcome> evaluate_if_due();
  Outcome done_before();
  void checkpoint_if_due();
  Outcome stopped(const std::string& reason);

  const Config& config_;
  CausalLM& model_;
  ShardingRuntime& runtime_;
  World& world_;
  Optimizer& optimizer_;
  const Batches& batches_;
  Metrics& metrics_;
  StopRequests& stop_;
  Checkpoints& checkpoints_;
  Balance* balance_;
  RoutingTap* tap_;
  ScheduleOptions schedule_;
  const std::int64_t began_;  ///< steps done before
  Progress progress_;
  std::int64_t skipped_in_a_row_ = 0;
  double lr_;  ///< of the last step
  double slowest_step_ = 0.0;
};

}  // namespace meshard
