#pragma once
// The balance of all MoE layers of a model: counts summed over the ranks once per optimizer step, the expert bias that
// follows from them (auxiliary-loss-free balancing, Wang et al. 2024), and what a user should know of it. DESIGN.md
// sections 4 and 7.

#include <span>
#include <string>
#include <vector>

#include "comm/world/world.h"
#include "moe/moe_layer.h"

namespace meshard {

/// One MoE layer in one step, over the global batch.
struct LayerBalance {
  int layer = 0;                 ///< decoder block
  std::int64_t count_total = 0;  ///< pairs kept
  double max_vio = 0.0;          ///< (largest load - mean) / mean; 0 without tokens
  std::int64_t dead = 0;         ///< experts without a token
  float bias_min = 0.0f, bias_max = 0.0f;
  bool bias_finite = true;
  std::int64_t dropped = 0;  ///< pairs
  double min_gap = 0.0;      ///< see Selection::min_gap
  std::vector<std::int64_t> counts;
  std::vector<float> bias;  ///< after the update
};

struct StepBalance {
  double aux_loss = 0.0;
  double z_loss = 0.0;
  std::vector<LayerBalance> layers;
};

class Balance {
 public:
  /// Local. `world` and `inner` are the axes world and dp_shard (the second one for the fault that forgets dp_outer).
  Balance(MoeLayers& layers, World& world, Communicator& world_axis, Communicator& inner_axis);

  /// Local. What the next forward of `microbatch` of `microbatches` is: training, with the main loss's scale.
  void begin_microbatch(double loss_scale);
  /// Local, without a fault. After the backward of a microbatch.
  void end_microbatch(std::int64_t microbatch, std::int64_t microbatches);
  /// Local. From now on forwards are evaluation: neither counted nor given auxiliary losses.
  void begin_evaluation();

  /// Collective over world: one all-reduce of all counts (and control traffic for the rest). After the last backward of
  /// a step, once. With `update` every bias moves by rate * sign(mean - count), decided in integers; without (the
  /// optimizer step is skipped) none does. Counts are zero afterwards. A layer whose router is frozen keeps its bias.
  StepBalance end_step(bool update);

  /// The same in two parts, for whoever reads all of a step's numbers together. Collective over world (the all-reduce),
  /// without a wait for the device: fp64 1-D, counts as the bits of int64, on the world's device.
  at::Tensor step_numbers();
  /// Collective over world (control). `numbers`: what step_numbers() gave, read.
  StepBalance end_step(bool update, std::span<const double> numbers);

  /// Collective over world (control). All ranks hold bitwise the same bias: throws ReplicaError on every rank naming
  /// the layers and ranks that differ from rank 0.
  void check_replicas();

 private:
  at::Tensor reduced_counts();
  at::Tensor counts_of(std::span<const double> numbers) const;
  bool biases_finite() const;
  void move_biases(const at::Tensor& totals);

  MoeLayers& layers_;
  World& world_;
  Communicator& world_axis_;
  Communicator& inner_axis_;
  at::Tensor totals_;  ///< of updates within the step (a fault)
};

}  // namespace meshard
