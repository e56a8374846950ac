#include "nn/recompute.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace meshard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Body = std::function<at::Tensor(const at::Tensor&)>;

thread_local int depth = 0;

struct RecomputationScope {
  RecomputationScope() { ++depth; }
  ~RecomputationScope() { --depth; }
};

struct BodyHolder : torch::CustomClassHolder {
  Body body;
};

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  // `anchor` requires grad, so that the output does even if the input does not: the body's parameters need the call.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& anchor,
                            const Body& body) {
    context->save_for_backward({input});
    auto holder = c10::make_intrusive<BodyHolder>();
    holder->body = body;
    context->saved_data["body"] = c10::IValue::make_capsule(std::move(holder));
    return body(input);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables()[0];
    auto input = saved.detach();
    input.set_requires_grad(context->needs_input_grad(0));
    auto holder = context->saved_data.at("body").toCapsule();
    at::Tensor output;
    {
      RecomputationScope scope;
      at::AutoGradMode with_graph(true);
      output = static_cast<BodyHolder&>(*holder).body(input);
    }
    if (output.requires_grad()) torch::autograd::backward({output}, {grads[0]});
    return {input.grad(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor recompute(const at::Tensor& input, Body body) {
  if (!at::GradMode::is_enabled()) return body(input);
  const auto anchor = at::zeros({}, input.options().dtype(at::kFloat)).set_requires_grad(true);
  return RecomputeFunction::apply(input, anchor, body);
}

bool in_recomputation() {
  return depth > 0;
}

}  // namespace meshard
