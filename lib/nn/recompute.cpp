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

struct BodyHolder : torch::CustomClassHolder {
  Body body;
  std::vector<at::Tensor> kept;  // what computed_once() made in the first run
};

// A body that runs, for the first or the second time.
struct Run {
  BodyHolder& holder;
  bool again;
  Run* enclosing;
  std::size_t next_kept = 0;  // second run: what computed_once() gives next
};

thread_local int depth = 0;
thread_local Run* innermost = nullptr;

class RunScope {
 public:
  RunScope(BodyHolder& holder, bool again) : run_{holder, again, innermost} {
    innermost = &run_;
    if (again) ++depth;
  }
  ~RunScope() {
    innermost = run_.enclosing;
    if (run_.again) --depth;
  }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  Run run_;
};

// The first run of a body within another's second one is no first run of its choices: the enclosing body has them.
at::Tensor computed_once_in(Run* run, const std::function<at::Tensor()>& make) {
  if (run == nullptr) return make();
  auto& kept = run->holder.kept;
  if (run->again) return kept.at(run->next_kept++);
  return kept.emplace_back(computed_once_in(run->enclosing, make));
}

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  // `anchor` requires grad, so that the output does even if the input does not: the body's parameters need the call.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& anchor,
                            const Body& body) {
    context->save_for_backward({input});
    auto holder = c10::make_intrusive<BodyHolder>();
    holder->body = body;
    context->saved_data["body"] = c10::IValue::make_capsule(holder);
    RunScope scope(*holder, /*again=*/false);
    return body(input);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto saved = context->get_saved_variables()[0];
    auto input = saved.detach();
    input.set_requires_grad(context->needs_input_grad(0));
    auto capsule = context->saved_data.at("body").toCapsule();
    auto& holder = static_cast<BodyHolder&>(*capsule);
    at::Tensor output;
    {
      RunScope scope(holder, /*again=*/true);
      at::AutoGradMode with_graph(true);
      output = holder.body(input);
    }
    if (output.requires_grad()) torch::autograd::backward({output}, {grads[0]});
    return {input.grad(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor recompute(const at::Tensor& input, Body body) {
  if (!at::GradMode::is_enabled()) return body(input);
  auto anchor = at::zeros({}, input.options().dtype(at::kFloat)).set_requires_grad(true);
  return RecomputeFunction::apply(input, anchor, body);
}

bool in_recomputation() {
  return depth > 0;
}

at::Tensor computed_once(const std::function<at::Tensor()>& make) {
  return computed_once_in(innermost, make);
}

}  // namespace meshard
