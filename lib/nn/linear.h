#pragma once
// Linear layer, and the products that attention and MLP build their own fused functions from.

#include <ATen/core/Tensor.h>

#include "module/module.h"

namespace meshard {

class Linear : public Module {
 public:
  /// Local. Parameters "weight" [out_features, in_features] ~ Normal(std), and "bias" [out_features] = 0 if `has_bias`.
  Linear(std::int64_t in_features, std::int64_t out_features, bool has_bias, double std,
         const at::TensorOptions& options);

  /// Local. A layer without bias whose weight is another module's (a head tied to the embedding).
  explicit Linear(const Parameter& tied_weight);

  const Parameter& weight() const { return weight_; }
  const Parameter& bias() const { return bias_; }  ///< empty if there is none

 protected:
  /// Local. [..., in] -> [..., out].
  at::Tensor forward(const at::Tensor& input) override;

 private:
  Parameter weight_;
  Parameter bias_;
};

/// Local. x W^T + b for a matrix x [rows, in], without autograd; `bias` may be undefined.
at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace meshard
