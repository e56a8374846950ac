#include "moe/experts.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include "base/error.h"
#include "module/device_path.h"
#include "nn/device/launch.h"
#include "nn/gradients.h"
#include "nn/swiglu.h"

namespace meshard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Which rows of a matrix each expert has.
class ExpertGroups {
 public:
  /// Known on the host: a product for each; or only where the rows of each end, on the device: one grouped product.
  ExpertGroups(std::vector<std::int64_t> rows, at::Tensor ends) : rows_(std::move(rows)), ends_(std::move(ends)) {}

  /// y = x W_e^T, or x W_e, for each expert's rows; `stacked` holds the W_e one below the other.
  at::Tensor product(const at::Tensor& x, const at::Tensor& stacked, bool transposed) const {
    if (ends_.defined()) {
      auto weights = stacked.unflatten(0, {ends_.size(0), -1});
      return at::_grouped_mm(x, transposed ? weights.transpose(1, 2) : weights, ends_);
    }
    auto height = stacked.size(0) / std::ssize(rows_);
    auto y = at::empty({x.size(0), transposed ? height : stacked.size(1)}, x.options());
    visit([&](std::int64_t expert, std::int64_t first, std::int64_t count) {
      if (count == 0) return;
      auto weight = stacked.narrow(0, expert * height, height);
      auto part = y.narrow(0, first, count);
      at::mm_out(part, x.narrow(0, first, count), transposed ? weight.t() : weight);
    });
    return y;
  }

  /// Gradient of the stacked W_e of y = x W_e^T.
  at::Tensor weight_gradient(const Parameter& parameter, const at::Tensor& grad_y, const at::Tensor& x) const {
    return parameter_gradient(parameter, grad_y.options(), [&](at::Tensor& target, int beta) {
      if (ends_.defined()) {
        auto products = at::_grouped_mm(grad_y.t(), x, ends_).flatten(0, 1);
        beta == 0 ? target.copy_(products) : target.add_(products);
        return;
      }
      visit([&](std::int64_t expert, std::int64_t first, std::int64_t count) {
        auto height = grad_y.size(1);
        auto part = target.narrow(0, expert * height, height);
        auto grads = grad_y.narrow(0, first, count), inputs = x.narrow(0, first, count);
        if (count == 0) {
          if (beta == 0) part.zero_();
        } else {
          write_product(part, beta, grads.t(), inputs);
        }
      });
    });
  }

 private:
  template <class Body>
  void visit(Body body) const {
    std::int64_t first = 0;
    for (std::int64_t expert = 0; expert < std::ssize(rows_); ++expert) {
      body(expert, first, rows_[expert]);
      first += rows_[expert];
    }
  }

  std::vector<std::int64_t> rows_;
  at::Tensor ends_;
};

struct ExpertsFunction : torch::autograd::Function<ExpertsFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& gate_up_weight,
                            const at::Tensor& down_weight, const std::vector<Parameter>& parameters,
                            const std::vector<std::int64_t>& expert_rows,
                            const std::optional<at::Tensor>& optional_ends) {
    auto ends = optional_ends.value_or(at::Tensor());
    const ExpertGroups groups(expert_rows, ends);
    auto x = rows.contiguous();
    auto gate_up = groups.product(x, gate_up_weight, /*transposed=*/true);
    context->save_for_backward({x, gate_up, gate_up_weight, down_weight, ends});
    context->saved_data["expert_rows"] = expert_rows;
    remember(context, parameters);
    auto inner = on_device_path(x) ? swiglu_rows_forward_aten(gate_up) : swiglu_rows_forward_cpu(gate_up);
    return groups.product(inner, down_weight, /*transposed=*/true);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto saved = context->get_saved_variables();
    const ExpertGroups groups(context->saved_data["expert_rows"].toIntVector(), saved[4]);
    auto& parameters = remembered(context);
    auto grad = grads[0].contiguous();
    auto kernel = on_device_path(grad) ? swiglu_rows_backward_aten : swiglu_rows_backward_cpu;
    auto inner = kernel(groups.product(grad, saved[3], /*transposed=*/false), saved[1]);
    variable_list result(6);
    if (context->needs_input_grad(2)) result[2] = groups.weight_gradient(parameters[1], grad, inner.product);
    if (context->needs_input_grad(1)) result[1] = groups.weight_gradient(parameters[0], inner.grad_gate_up, saved[0]);
    if (context->needs_input_grad(0)) result[0] = groups.product(inner.grad_gate_up, saved[2], /*transposed=*/false);
    return result;
  }
};

std::int64_t experts_per_rank(const MoeOptions& options, const ExpertParallel& parallel) {
  if (options.n_routed_experts % parallel.size != 0) {
    throw ArgumentError(fmt::format("{} experts cannot be spread over {} ranks; choose a divisor of the experts",
                                    options.n_routed_experts, parallel.size));
  }
  return options.n_routed_experts / parallel.size;
}

}  // namespace

Experts::Experts(const MoeOptions& options, const ExpertParallel& parallel, const at::TensorOptions& tensor_options) {
  auto local = experts_per_rank(options, parallel);
  auto hidden = options.hidden_size, width = options.moe_intermediate_size;
  auto stacked = [&](const char* name, std::int64_t height, std::int64_t columns) {
    TensorPart part({options.n_routed_experts, height, columns},
                    {{parallel.rank * local, 0, 0}, {local, height, columns}});
    return add_parameter(name, {local * height, columns}, std::move(part), tensor_options,
                         Init::normal(options.initializer_range), /*decay=*/true);
  };
  gate_up_proj_ = stacked("gate_up_proj", 2 * width, hidden);
  down_proj_ = stacked("down_proj", hidden, width);
}

bool Experts::grouped_products(const at::Tensor& rows) const {
  return has_grouped_products(rows, {gate_up_proj_.slot().shape[1], down_proj_.slot().shape[1]});
}

at::Tensor Experts::compute(const at::Tensor& rows, const std::vector<std::int64_t>& expert_rows,
                            const at::Tensor& expert_ends) {
  const bool grouped = expert_ends.defined() && grouped_products(rows);
  auto ends = grouped ? std::optional(expert_ends) : std::nullopt;
  return invoke(rows, [&](const at::Tensor& x) {
    return ExpertsFunction::apply(x, gate_up_proj_.tensor(), down_proj_.tensor(),
                                  std::vector{gate_up_proj_, down_proj_}, expert_rows, ends);
  });
}

at::Tensor Experts::forward(const at::Tensor&) {
  throw LogicError("experts were called with rows alone; use compute(), which takes the rows of each expert too");
}

}  // namespace meshard
