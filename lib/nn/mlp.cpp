#include "nn/mlp.h"

#include <ATen/ops/mm.h>

#include "module/device_path.h"
#include "nn/gradients.h"
#include "nn/swiglu.h"

namespace meshard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct MlpFunction : torch::autograd::Function<MlpFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& gate_weight,
                            const at::Tensor& up_weight, const at::Tensor& down_weight,
                            const std::vector<Parameter>& parameters) {
    auto rows = as_matrix(x);
    auto gate = at::mm(rows, gate_weight.t());
    auto up = at::mm(rows, up_weight.t());
    context->save_for_backward({rows, gate, up, gate_weight, up_weight, down_weight});
    context->saved_data["shape"] = x.sizes();
    remember(context, parameters);
    auto product = on_device_path(x) ? swiglu_forward_aten(gate, up) : swiglu_forward_cpu(gate, up);
    return at::mm(product, down_weight.t()).view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto saved = context->get_saved_variables();
    auto& x = saved[0];
    auto& parameters = remembered(context);
    auto grad = as_matrix(grads[0]);
    auto kernel = on_device_path(grad) ? swiglu_backward_aten : swiglu_backward_cpu;
    auto inner = kernel(at::mm(grad, saved[5]), saved[1], saved[2]);
    variable_list result(5);
    if (context->needs_input_grad(3)) result[3] = weight_gradient(parameters[2], grad, inner.product);
    if (context->needs_input_grad(1)) result[1] = weight_gradient(parameters[0], inner.grad_gate, x);
    if (context->needs_input_grad(2)) result[2] = weight_gradient(parameters[1], inner.grad_up, x);
    if (context->needs_input_grad(0)) {
      auto grad_x = at::mm(inner.grad_gate, saved[3]);
      grad_x.addmm_(inner.grad_up, saved[4]);
      result[0] = grad_x.view(context->saved_data["shape"].toIntVector());
    }
    return result;
  }
};

}  // namespace

Mlp::Mlp(std::int64_t hidden_size, std::int64_t intermediate_size, double std, const at::TensorOptions& options)
    : gate_proj_(hidden_size, intermediate_size, false, std, options),
      up_proj_(hidden_size, intermediate_size, false, std, options),
      down_proj_(intermediate_size, hidden_size, false, std, options) {
  add_child("gate_proj", gate_proj_);
  add_child("up_proj", up_proj_);
  add_child("down_proj", down_proj_);
}

at::Tensor Mlp::forward(const at::Tensor& input) {
  auto &gate = gate_proj_.weight(), &up = up_proj_.weight(), &down = down_proj_.weight();
  return MlpFunction::apply(input, gate.tensor(), up.tensor(), down.tensor(), std::vector{gate, up, down});
}

}  // namespace meshard
