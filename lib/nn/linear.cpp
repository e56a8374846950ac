#include "nn/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "nn/gradients.h"

namespace meshard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const std::vector<Parameter>& parameters) {
    auto rows = as_matrix(x);
    context->save_for_backward({rows, weight});
    context->saved_data["shape"] = x.sizes();
    remember(context, parameters);
    auto shape = x.sizes().vec();
    shape.back() = weight.size(0);
    return linear_product(rows, weight, bias.value_or(at::Tensor())).view(shape);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto saved = context->get_saved_variables();
    auto& parameters = remembered(context);
    auto grad = as_matrix(grads[0]);
    variable_list result(4);
    if (context->needs_input_grad(0)) {
      result[0] = at::mm(grad, saved[1]).view(context->saved_data["shape"].toIntVector());
    }
    if (context->needs_input_grad(1)) result[1] = weight_gradient(parameters[0], grad, saved[0]);
    if (parameters[1] && context->needs_input_grad(2)) result[2] = bias_gradient(parameters[1], grad);
    return result;
  }
};

}  // namespace

Linear::Linear(std::int64_t in_features, std::int64_t out_features, bool has_bias, double std,
               const at::TensorOptions& options) {
  weight_ = add_parameter("weight", {out_features, in_features}, options, Init::normal(std), /*decay=*/true);
  if (has_bias) bias_ = add_parameter("bias", {out_features}, options, Init::constant(0.0), /*decay=*/false);
}

Linear::Linear(const Parameter& tied_weight) : weight_(tied_weight) {
  add_parameter("weight", tied_weight);
}

at::Tensor Linear::forward(const at::Tensor& input) {
  return LinearFunction::apply(input, weight_.tensor(), optional_tensor(bias_), std::vector{weight_, bias_});
}

at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return bias.defined() ? at::addmm(bias, x, weight.t()) : at::mm(x, weight.t());
}

}  // namespace meshard
