#include "nn/rms_norm.h"

#include "module/device_path.h"
#include "nn/gradients.h"

namespace meshard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AddNormFunction : torch::autograd::Function<AddNormFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& addend, const Parameter& parameter, double eps) {
    auto kernel = on_device_path(x) ? rms_norm_forward_aten : rms_norm_forward_cpu;
    auto out = kernel(as_matrix(x), addend ? as_matrix(*addend) : at::Tensor(), weight, eps);
    auto sum = addend ? out.sum.view(x.sizes()) : x;
    context->save_for_backward({sum, weight, out.rstd});
    context->saved_data["has_addend"] = addend.has_value();
    context->set_materialize_grads(false);
    remember(context, {parameter});
    return {sum, out.normed.view(x.sizes())};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto saved = context->get_saved_variables();
    variable_list result(5);
    auto& grad_sum = grads[0];
    if (!grads[1].defined()) {
      result[0] = grad_sum;
    } else {
      auto kernel = on_device_path(grads[1]) ? rms_norm_backward_aten : rms_norm_backward_cpu;
      auto out = kernel(as_matrix(grads[1]), grad_sum.defined() ? as_matrix(grad_sum) : grad_sum, as_matrix(saved[0]),
                        saved[2], saved[1]);
      result[0] = out.grad_x.view(saved[0].sizes());
      if (context->needs_input_grad(1)) result[1] = weight_gradient_of(remembered(context)[0], out.grad_weight);
    }
    if (context->saved_data["has_addend"].toBool()) result[2] = result[0];
    return result;
  }

  static at::Tensor weight_gradient_of(const Parameter& weight, const at::Tensor& gradient) {
    return parameter_gradient(weight, gradient.options(), [&](at::Tensor& target, int beta) {
      beta == 0 ? target.copy_(gradient) : target.add_(gradient);
    });
  }
};

}  // namespace

RMSNorm::RMSNorm(std::int64_t size, double eps, const at::TensorOptions& options) : eps_(eps) {
  weight_ = add_parameter("weight", {size}, options, Init::constant(1.0), /*decay=*/false);
}

SumAndNorm RMSNorm::add(const at::Tensor& x, const at::Tensor& addend) {
  auto optional_addend = addend.defined() ? std::optional(addend) : std::nullopt;
  auto outputs = AddNormFunction::apply(x, weight_.tensor(), optional_addend, weight_, eps_);
  return {outputs[0], outputs[1]};
}

}  // namespace meshard
