#include "nn/gradients.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include "module/device_path.h"

namespace meshard {

namespace {

constexpr auto kKey = "parameters";

struct ParameterHolder : torch::CustomClassHolder {
  std::vector<Parameter> parameters;
};

}  // namespace

void remember(torch::autograd::AutogradContext* context, std::vector<Parameter> parameters) {
  auto holder = c10::make_intrusive<ParameterHolder>();
  holder->parameters = std::move(parameters);
  context->saved_data[kKey] = c10::IValue::make_capsule(std::move(holder));
}

const std::vector<Parameter>& remembered(torch::autograd::AutogradContext* context) {
  auto holder = context->saved_data.at(kKey).toCapsule();
  return static_cast<ParameterHolder&>(*holder).parameters;
}

at::Tensor parameter_gradient(const Parameter& parameter, const at::TensorOptions& options,
                              const std::function<void(at::Tensor& target, int beta)>& write) {
  auto& slot = parameter.slot();
  if (accumulate_into_sink(slot, slot.dtype, write)) return {};
  if (on_device_path(options.device()) && accumulate_into_sink(slot, at::kFloat, write)) return {};
  auto gradient = at::empty(slot.shape, options.dtype(slot.dtype));
  write(gradient, 0);
  return gradient;
}

void write_product(at::Tensor& target, int beta, const at::Tensor& a, const at::Tensor& b) {
  if (target.scalar_type() == a.scalar_type()) {
    beta == 0 ? at::mm_out(target, a, b) : target.addmm_(a, b);
  } else if (a.is_cuda()) {
    at::addmm_out(target, target, a, b, target.scalar_type(), /*beta=*/beta);
  } else {
    target.addmm_(a.to(target.scalar_type()), b.to(target.scalar_type()), /*beta=*/beta);
  }
}

at::Tensor weight_gradient(const Parameter& weight, const at::Tensor& grad_output, const at::Tensor& x) {
  return parameter_gradient(weight, grad_output.options(),
                            [&](at::Tensor& target, int beta) { write_product(target, beta, grad_output.t(), x); });
}

at::Tensor bias_gradient(const Parameter& bias, const at::Tensor& grad_output) {
  return parameter_gradient(bias, grad_output.options(), [&](at::Tensor& target, int beta) {
    auto sum = at::sum(grad_output, 0, /*keepdim=*/false, target.scalar_type());
    beta == 0 ? target.copy_(sum) : target.add_(sum);
  });
}

std::optional<at::Tensor> optional_tensor(const Parameter& parameter) {
  if (!parameter) return std::nullopt;
  return parameter.tensor();
}

at::Tensor as_matrix(const at::Tensor& x) {
  return x.contiguous().view({-1, x.size(-1)});
}

}  // namespace meshard
