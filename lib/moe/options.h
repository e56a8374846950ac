#pragma once
// What all layers of a mixture-of-experts model share: sizes, routing rules, and what they are told before a forward.

#include <cstdint>
#include <optional>

#include "comm/communicator.h"
#include "moe/fault.h"

namespace meshard {

class RoutingTap;

/// The bias that is added to scores for the choice of experts, and moved after each step.
struct ExpertBiasOptions {
  bool enabled = true;
  double update_rate = 1e-3;
  bool recenter = false;  ///< subtract the mean of each update
  double initial = 0.0;
};

/// Field names are Hugging Face's where it has them; the rest are the config's.
struct MoeOptions {
  enum class Scoring { Sigmoid, Softmax };
  enum class AuxLoss { None, Switch, Sequence };

  std::int64_t hidden_size = 0;
  std::int64_t moe_intermediate_size = 0;  ///< of one expert
  std::int64_t n_routed_experts = 0;
  std::int64_t num_experts_per_tok = 1;
  std::int64_t n_shared_experts = 0;  ///< fused into one MLP of n_shared_experts * moe_intermediate_size
  Scoring scoring = Scoring::Sigmoid;
  std::int64_t n_group = 1;
  std::int64_t topk_group = 1;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;
  double initializer_range = 0.02;

  ExpertBiasOptions expert_bias;
  AuxLoss aux_loss = AuxLoss::None;
  double aux_loss_coeff = 0.0;
  double z_loss_coeff = 0.0;
  /// Pairs that an expert takes from one microbatch of one rank, as a multiple of the even share; none: dropless.
  std::optional<double> capacity_factor;

  Fault fault = Fault::None;
};

/// This rank's place among the ranks that share one set of experts. Expert e lies on rank e / (experts / size).
struct ExpertParallel {
  int size = 1;
  int rank = 0;
  Communicator* axis = nullptr;  ///< `expert`; null: shapes only, or size 1
};

/// What the layers of one model are told before each forward; all of them read one.
struct MoePass {
  bool training = false;      ///< count, and add auxiliary losses; evaluation does neither
  double loss_scale = 0.0;    ///< of the main loss: ranks / target tokens of the step (nn/causal_lm.h)
  RoutingTap* tap = nullptr;  ///< records or replays the choices of a training forward
};

}  // namespace meshard
