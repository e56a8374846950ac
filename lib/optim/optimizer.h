#pragma once
// Optimizers on flat shards: each rank updates the elements it owns and nothing else, so there is no communication
// here. All runs of one decay class of a shard go to LibTorch's fused kernel in one call, which reads and writes every
// element once. An element's result does not depend on where it lies in a run, so not on the mesh either: bitwise.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sharding/flat_shard.h"

namespace meshard {

/// One state tensor of one shard, laid out as the shard's weight. It is the optimizer's own tensor, not a copy: loading
/// a checkpoint writes into it.
struct NamedState {
  std::string shard;  ///< FlatShard::name
  std::string name;   ///< "exp_avg", "exp_avg_sq": PyTorch's names
  at::Tensor tensor;  ///< 1-D, numel and dtype of the shard's weight
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Local. One update of every element that lies in a run of `shards`, at learning rate `lr`. Padding and gaps are
  /// neither read nor written; a shard without runs is legal, and its gradient may be undefined.
  ///
  /// Checked before anything is written, naming the shard. LogicError: an undefined gradient (the step has had no
  /// backward), two shards of one name, a shard that was not there in the first step. ShapeError: weight and gradient
  /// that are not contiguous, 1-D, floating and of equal size and dtype, or a run outside the shard.
  ///
  /// With a `grad_scale` other than 1 the gradients are read times it: clipping without a pass of its own. They may be
  /// overwritten by that.
  void step(std::span<const FlatShard> shards, double lr, double grad_scale = 1.0);

  /// Local. Creates the state that the first step would create, all zeros; does nothing where it exists. To load a
  /// checkpoint into: allocate, fill state(), set_steps. Errors as step(), except that gradients are not looked at.
  void allocate(std::span<const FlatShard> shards);

  /// Local. All state there is, by shard name; empty before the first step or allocate().
  virtual std::vector<NamedState> state() const { return {}; }

  /// Local. Bytes of state per fp32 element.
  virtual std::int64_t bytes_per_element() const = 0;

  /// Local. Steps taken; AdamW corrects its bias by it.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 protected:
  virtual void allocate_state(const FlatShard& shard) {}
  virtual bool has_state(const FlatShard& shard) const { return true; }
  /// What update() is told beside its shard.
  struct StepArguments {
    double lr;
    double grad_scale;
    /// For the fused kernels, which divide by it: 1 / grad_scale, or nothing for 1.
    std::optional<at::Tensor> divisor(const FlatShard& shard) const;
  };
  /// Updates one checked shard; steps() counts this step already, gradients are off.
  virtual void update(const FlatShard& shard, const StepArguments& arguments) = 0;

 private:
  std::int64_t steps_ = 0;
};

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

/// Decoupled weight decay (Loshchilov and Hutter 2019), as torch.optim.AdamW: at step t,
///   w *= 1 - lr * weight_decay   (runs that decay)
///   m += (1 - beta1) * (g - m);  v = beta2 * v + (1 - beta2) * g * g
///   w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
class AdamW : public Optimizer {
 public:
  explicit AdamW(const AdamWOptions& options) : options_(options) {}

  std::vector<NamedState> state() const override;
  std::int64_t bytes_per_element() const override { return 8; }

 protected:
  void allocate_state(const FlatShard& shard) override;
  bool has_state(const FlatShard& shard) const override { return moments_.count(shard.name) > 0; }
  void update(const FlatShard& shard, const StepArguments& arguments) override;

 private:
  struct Moments {
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
  };

  AdamWOptions options_;
  std::map<std::string, Moments> moments_;
};

struct SgdOptions {
  double weight_decay = 0.0;
};

/// Plain stochastic gradient descent without momentum, as torch.optim.SGD: w -= lr * (g + weight_decay * w), the decay
/// in runs that decay. No state.
class Sgd : public Optimizer {
 public:
  explicit Sgd(const SgdOptions& options) : options_(options) {}

  std::int64_t bytes_per_element() const override { return 0; }

 protected:
  void update(const FlatShard& shard, const StepArguments& arguments) override;

 private:
  SgdOptions options_;
};

}  // namespace meshard
