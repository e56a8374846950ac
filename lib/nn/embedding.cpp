#include "nn/embedding.h"

#include <ATen/Parallel.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <numeric>

#include "module/device_path.h"
#include "nn/gradients.h"
#include "nn/kernel_dispatch.h"
#include "nn/simd.h"

namespace meshard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& ids,
                            const Parameter& parameter) {
    context->save_for_backward({ids});
    remember(context, {parameter});
    auto shape = ids.sizes().vec();
    shape.push_back(weight.size(1));
    return at::index_select(weight, 0, ids.reshape(-1)).view(shape);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto ids = context->get_saved_variables()[0].reshape(-1).contiguous();
    auto grad = as_matrix(grads[0]);
    auto kernel = on_device_path(grad) ? embedding_backward_aten : embedding_backward_cpu;
    auto gradient = parameter_gradient(remembered(context)[0], grad.options(),
                                       [&](at::Tensor& target, int beta) { kernel(grad, ids, target, beta); });
    return {gradient, at::Tensor(), at::Tensor()};
  }
};

/// Tokens in the order of their ids; tokens of one id in their own order.
std::vector<std::int64_t> tokens_by_id(const std::int64_t* ids, std::int64_t tokens) {
  std::vector<std::int64_t> order(tokens);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return ids[a] < ids[b]; });
  return order;
}

template <class T>
void add_rows(const T* grad, std::span<const std::int64_t> tokens, T* target, std::int64_t size) {
  simd::for_each(size, [&](std::int64_t i, std::int64_t count) {
    auto v = simd::Floats{};
    for (auto token : tokens) v += simd::load(grad + token * size + i, count);
    simd::store(target + i, simd::load(target + i, count) + v, count);
  });
}

}  // namespace

Embedding::Embedding(std::int64_t vocab_size, std::int64_t hidden_size, double std, const at::TensorOptions& options) {
  weight_ = add_parameter("weight", {vocab_size, hidden_size}, options, Init::normal(std), /*decay=*/false);
}

void check_token_ids(const at::Tensor& ids, std::int64_t vocab_size) {
  if (!ids.is_cpu()) return;
  auto flat = ids.contiguous();
  auto* id = flat.const_data_ptr<std::int64_t>();
  auto* end = id + flat.numel();
  auto* bad = std::find_if(id, end, [&](std::int64_t x) { return x < 0 || x >= vocab_size; });
  if (bad != end) {
    throw ArgumentError(fmt::format("token {} at position {} of the batch is outside the vocabulary of {}", *bad,
                                    bad - id, vocab_size));
  }
}

at::Tensor Embedding::forward(const at::Tensor& ids) {
  check_token_ids(ids, weight_.slot().shape[0]);
  return EmbeddingFunction::apply(weight_.tensor(), ids, weight_);
}

void embedding_backward_cpu(const at::Tensor& grad, const at::Tensor& ids, at::Tensor& target, int beta) {
  auto tokens = ids.numel(), size = grad.size(1);
  auto* id = ids.const_data_ptr<std::int64_t>();
  auto order = tokens_by_id(id, tokens);
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < tokens; ++i) {
    if (i == 0 || id[order[i]] != id[order[i - 1]]) starts.push_back(i);
  }
  starts.push_back(tokens);
  if (beta == 0) target.zero_();
  dispatch_kernel(grad, "embedding_backward", [&]<class T>() {
    auto* from = grad.const_data_ptr<T>();
    auto* to = target.mutable_data_ptr<T>();
    at::parallel_for(0, std::ssize(starts) - 1, 16, [&](std::int64_t begin, std::int64_t end) {
      for (auto k = begin; k < end; ++k) {
        auto rows = std::span(order).subspan(starts[k], starts[k + 1] - starts[k]);
        add_rows(from, rows, to + id[rows[0]] * size, size);
      }
    });
  });
}

void embedding_backward_aten(const at::Tensor& grad, const at::Tensor& ids, at::Tensor& target, int beta) {
  auto sum =
      at::embedding_dense_backward(grad.to(target.scalar_type()), ids, target.size(0), /*padding_idx=*/-1, false);
  beta == 0 ? target.copy_(sum) : target.add_(sum);
}

}  // namespace meshard
