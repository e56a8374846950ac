#include "nn/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "module/device_path.h"
#include "nn/gradients.h"

namespace meshard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor slice_losses(at::Tensor& logits, const at::Tensor& targets, double grad_scale) {
  auto kernel = on_device_path(logits) ? cross_entropy_rows_aten : cross_entropy_rows_cpu;
  return kernel(logits, targets, grad_scale);
}

at::Tensor logits_of(const at::Tensor& hidden, const at::Tensor& head) {
  return at::mm(hidden, head.t()).to(at::kFloat);
}

struct HeadLossFunction : torch::autograd::Function<HeadLossFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& head,
                            const at::Tensor& targets, const Parameter& parameter, double scale, bool with_gradient) {
    auto tokens = hidden.size(0), slice = logit_slice_rows(head.size(0));
    at::Tensor last;
    at::Tensor sum;
    for (std::int64_t begin = 0; begin < tokens; begin += slice) {
      auto rows = std::min(slice, tokens - begin);
      last = logits_of(hidden.narrow(0, begin, rows), head);
      const bool keep = with_gradient && begin + rows == tokens;
      auto losses = slice_losses(last, targets.narrow(0, begin, rows), keep ? scale : 0.0);
      auto part = at::sum(losses, at::kDouble);
      sum = sum.defined() ? sum + part : part;
    }
    if (with_gradient) context->save_for_backward({hidden, head, targets, last});
    context->saved_data["scale"] = scale;
    remember(context, {parameter});
    return (sum * scale).to(at::kFloat);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto saved = context->get_saved_variables();
    auto &hidden = saved[0], &head = saved[1];
    auto tokens = hidden.size(0), slice = logit_slice_rows(head.size(0));
    const bool by_one = !on_device_path(grads[0]) && grads[0].item<float>() == 1.0f;
    auto grad_hidden = context->needs_input_grad(0) ? at::empty_like(hidden) : at::Tensor();
    at::Tensor grad_head;
    for (std::int64_t begin = 0; begin < tokens; begin += slice) {
      auto rows = std::min(slice, tokens - begin);
      auto rows_in = hidden.narrow(0, begin, rows);
      auto grad = saved[3];
      if (begin + rows < tokens) {
        grad = logits_of(rows_in, head);
        slice_losses(grad, saved[2].narrow(0, begin, rows), context->saved_data["scale"].toDouble());
      }
      if (!by_one) grad = grad * grads[0];
      grad = grad.to(hidden.scalar_type());
      if (grad_hidden.defined()) {
        auto out = grad_hidden.narrow(0, begin, rows);
        at::mm_out(out, grad, head);
      }
      if (!context->needs_input_grad(1)) continue;
      if (grad_head.defined()) {
        grad_head.addmm_(grad.t(), rows_in);
      } else {
        grad_head = weight_gradient(remembered(context)[0], grad, rows_in);
      }
    }
    return {grad_hidden, grad_head, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

void check_targets(const at::Tensor& targets, std::int64_t vocab_size) {
  if (!targets.is_cpu()) return;
  auto* first = targets.const_data_ptr<std::int64_t>();
  auto* end = first + targets.numel();
  auto* bad = std::find_if(first, end, [&](auto x) { return (x < 0 && x != kIgnoredTarget) || x >= vocab_size; });
  if (bad != end) {
    throw ArgumentError(
        fmt::format("target {} at position {} of the batch is outside the vocabulary of {} and is not "
                    "{} (ignored)",
                    *bad, bad - first, vocab_size, kIgnoredTarget));
  }
}

std::int64_t logit_slice_rows(std::int64_t vocab_size) {
  return std::clamp<std::int64_t>((std::int64_t{1} << 24) / vocab_size, 256, 2048);
}

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const Parameter& head, const at::Tensor& targets,
                                double scale) {
  auto flat = targets.reshape(-1).contiguous();
  auto rows = hidden.reshape({-1, hidden.size(-1)}).contiguous();
  if (rows.size(0) != flat.size(0) || flat.numel() == 0) {
    throw ShapeError(
        fmt::format("cross-entropy of {} rows of hidden states with {} targets", rows.size(0), flat.size(0)));
  }
  check_targets(flat, head.slot().shape[0]);
  return HeadLossFunction::apply(rows, head.tensor(), flat, head, scale, at::GradMode::is_enabled());
}

}  // namespace meshard
