#pragma once
// The router of one layer: scores, choice of experts, combine weights, and the counts that steer the expert bias.
// DESIGN.md sections 1, 4, 5 and 6. Arithmetic in fp32 whatever the model's dtype.

#include <limits>

#include "module/module.h"
#include "moe/options.h"

namespace meshard {

struct Routing {
  at::Tensor ids;      ///< [tokens, K] int64, where x is; kDroppedPair where a pair is dropped
  at::Tensor weights;  ///< [tokens, K] fp32, differentiable
};

/// What a router has seen since clear(), beside its counts. Losses are this rank's share: their sum over ranks / ranks
/// is the loss of the step.
struct RouterTally {
  std::int64_t dropped = 0;  ///< pairs
  double aux_loss = 0.0;
  double z_loss = 0.0;
  double min_gap = std::numeric_limits<double>::infinity();
};

class Router : public Module {
 public:
  /// Local. Parameter "weight" [experts, hidden_size] ~ Normal(initializer_range); persistent fp32 buffer
  /// "e_score_correction_bias" [experts] = bias_initial, never cast, real and on the host even in a model on meta;
  /// non-persistent int64 buffer "tokens_per_expert" [experts] = 0, which moves to where tokens are routed.
  /// `layer`: index among the model's MoE layers.
  /// `options` and `pass` must outlive this.
  Router(const MoeOptions& options, int layer, const MoePass& pass, const at::TensorOptions& tensor_options);

  /// Local. Routes x [tokens, hidden_size], tokens = sequences * seq_len. In training (pass) it counts the pairs that
  /// are kept and attaches the auxiliary losses to the weights' backward. A recomputed forward gets the first one's
  /// choice, and does not count.
  Routing route(const at::Tensor& x, std::int64_t seq_len);

  int layer() const { return layer_; }
  /// Shared with the buffer: writes change what the next forward uses.
  at::Tensor bias() { return bias_buffer().tensor; }
  at::Tensor counts() { return counts_; }
  /// Local. The tally as fp64 [4]: pairs dropped, aux_loss, z_loss, min_gap, where the last forward was.
  at::Tensor tally_numbers() const { return tally_; }
  /// Local. The same, read: a host wait where it is on a device.
  RouterTally tally() const;
  bool frozen() const { return !weight_.slot().requires_grad; }
  /// Local. Counts and tally to zero.
  void clear();

 protected:
  /// Local. Logits [tokens, experts], fp32.
  at::Tensor forward(const at::Tensor& x) override;

 private:
  Buffer& bias_buffer() { return buffers().front(); }
  at::Tensor bias_on(const at::Tensor& scores);
  at::Tensor choose(const at::Tensor& scores);
  at::Tensor weights_of(const at::Tensor& scores, const at::Tensor& chosen);
  at::Tensor within_capacity(const at::Tensor& chosen, const at::Tensor& weights);
  at::Tensor with_losses(const at::Tensor& weights, const at::Tensor& logits, const at::Tensor& chosen,
                         std::int64_t seq_len);
  void count(const at::Tensor& ids);
  void add_to_tally(int number, const at::Tensor& value);
  void follow(at::Device device);

  const MoeOptions& options_;
  int layer_;
  const MoePass& pass_;
  Parameter weight_;
  at::Tensor counts_;
  at::Tensor tally_;
};

}  // namespace meshard
