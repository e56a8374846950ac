#pragma once
// The feed-forward part of a decoder block: down(silu(gate(x)) * up(x)) (SwiGLU, Shazeer 2020), without biases.

#include "nn/linear.h"

namespace meshard {

class Mlp : public Module {
 public:
  /// Local. Children gate_proj, up_proj [intermediate_size, hidden_size] and down_proj [hidden_size,
  /// intermediate_size], ~ Normal(std). Their hooks do not run: the unit that owns this module owns them.
  Mlp(std::int64_t hidden_size, std::int64_t intermediate_size, double std, const at::TensorOptions& options);

 protected:
  /// Local. [..., hidden_size] -> the same. One autograd node; keeps x, gate and up for backward.
  at::Tensor forward(const at::Tensor& input) override;

 private:
  Linear gate_proj_;
  Linear up_proj_;
  Linear down_proj_;
};

}  // namespace meshard
