#pragma once
// What the fused autograd functions share: they hold the parameters whose gradients they make, and write each gradient
// straight into the parameter's sink where it has one (module/module.h), else hand it to autograd.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <optional>
#include <vector>

#include "module/module.h"

namespace meshard {

/// Local. Keeps handles of the parameters in `context` until backward. Once per forward.
void remember(torch::autograd::AutogradContext* context, std::vector<Parameter> parameters);

/// Local. What remember() kept, in its order.
const std::vector<Parameter>& remembered(torch::autograd::AutogradContext* context);

/// Local. The gradient that `write(target, beta)` computes (target = value + beta * target; beta 0 or 1, the target's
/// old content is garbage if 0): written into the parameter's sink, then the result is undefined; or returned as a
/// fresh tensor of the parameter's shape and dtype. On the path of devices also into a sink of fp32 for a bf16
/// parameter: without a rounding between.
at::Tensor parameter_gradient(const Parameter& parameter, const at::TensorOptions& options,
                              const std::function<void(at::Tensor& target, int beta)>& write);

/// Local. target = a b + beta * target; a and b may be bf16 where target is fp32.
void write_product(at::Tensor& target, int beta, const at::Tensor& a, const at::Tensor& b);

/// Local. Gradient of W [out, in] in y = x W^T, from grad_output [rows, out] and x [rows, in].
at::Tensor weight_gradient(const Parameter& weight, const at::Tensor& grad_output, const at::Tensor& x);

/// Local. Gradient of b [out] in y = x W^T + b, from grad_output [rows, out].
at::Tensor bias_gradient(const Parameter& bias, const at::Tensor& grad_output);

/// Local. The parameter's tensor as an optional input of an autograd function; nullopt for an empty handle.
std::optional<at::Tensor> optional_tensor(const Parameter& parameter);

/// Local. [..., n] as a contiguous matrix [rows, n]; shares memory if x is contiguous.
at::Tensor as_matrix(const at::Tensor& x);

}  // namespace meshard
