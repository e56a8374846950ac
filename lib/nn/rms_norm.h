#pragma once
// Root mean square normalisation (Zhang and Sennrich 2019) as Hugging Face computes it: statistics in fp32, the
// normalised value rounded to the input's dtype, then times the weight.

#include <ATen/core/Tensor.h>

#include "module/module.h"

namespace meshard {

struct SumAndNorm {
  at::Tensor sum;     ///< x, or x + addend
  at::Tensor normed;  ///< RMSNorm(sum)
};

class RMSNorm : public Module {
 public:
  /// Local. Parameter "weight" [size] = 1, without weight decay.
  RMSNorm(std::int64_t size, double eps, const at::TensorOptions& options);

  /// Local. The residual stream and its normalised copy in one pass, and in backward one gradient for both of them.
  /// x [..., size]; `addend` the same shape, or undefined for none. Goes around the hooks of this module: the unit that
  /// owns the weight must be gathered.
  SumAndNorm add(const at::Tensor& x, const at::Tensor& addend);

 protected:
  at::Tensor forward(const at::Tensor& input) override { return add(input, {}).normed; }

 private:
  Parameter weight_;
  double eps_;
};

// The kernels behind it: `_cpu` is fused, `_aten` serves every other device. Both fp32 and bf16; matrices [rows, size].

struct RmsNormForward {
  at::Tensor sum;     ///< undefined if there was no addend
  at::Tensor normed;  ///< [rows, size]
  at::Tensor rstd;    ///< [rows], fp32
};

struct RmsNormBackward {
  at::Tensor grad_x;       ///< [rows, size]; includes grad_sum if that is defined
  at::Tensor grad_weight;  ///< [size], fp32, summed over fixed blocks of rows: independent of the thread count
};

/// Local. `addend` may be undefined.
RmsNormForward rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& addend, const at::Tensor& weight,
                                    double eps);
RmsNormForward rms_norm_forward_aten(const at::Tensor& x, const at::Tensor& addend, const at::Tensor& weight,
                                     double eps);

/// Local. `sum` is what was normalised; `grad_sum` may be undefined.
RmsNormBackward rms_norm_backward_cpu(const at::Tensor& grad_normed, const at::Tensor& grad_sum, const at::Tensor& sum,
                                      const at::Tensor& rstd, const at::Tensor& weight);
RmsNormBackward rms_norm_backward_aten(const at::Tensor& grad_normed, const at::Tensor& grad_sum, const at::Tensor& sum,
                                       const at::Tensor& rstd, const at::Tensor& weight);

}  // namespace meshard
