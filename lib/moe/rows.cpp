#include "moe/rows.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "nn/device/launch.h"
#include "nn/kernel_dispatch.h"
#include "nn/simd.h"

namespace meshard {

namespace {

using simd::Floats;

std::int64_t rows_per_thread(std::int64_t width) {
  return std::max<std::int64_t>(1, kParallelGrain / std::max<std::int64_t>(1, width));
}

template <class T>
void sum_token(const T* rows, const std::int64_t* row_of, const float* weights, T* out, std::int64_t top_k,
               std::int64_t width) {
  simd::for_each(width, [&](std::int64_t i, std::int64_t count) {
    Floats sum = {};
    for (std::int64_t k = 0; k < top_k; ++k) {
      if (row_of[k] < 0) continue;
      const Floats v = simd::load(rows + row_of[k] * width + i, count);
      sum += weights ? weights[k] * v : v;
    }
    simd::store(out + i, sum, count);
  });
}

template <class T>
float backward_pair(const T* grad, const T* row, float weight, T* grad_row, std::int64_t width) {
  Floats products = {};
  simd::for_each(width, [&](std::int64_t i, std::int64_t count) {
    const Floats g = simd::load(grad + i, count);
    products += g * simd::load(row + i, count);
    simd::store(grad_row + i, weight * g, count);
  });
  return simd::sum(products);
}

/// Column k of row_of as a valid index, and which of its pairs are there, as a column.
struct PairColumn {
  PairColumn(const at::Tensor& row_of, std::int64_t k)
      : index(row_of.select(1, k).clamp_min(0)), kept(row_of.select(1, k).ge(0).unsqueeze(1)) {}
  at::Tensor index, kept;
};

/// [rows]: which pair (token * K + k) each row belongs to.
at::Tensor pairs_of_rows(const at::Tensor& row_of, std::int64_t rows) {
  auto pairs = row_of.reshape({-1});
  auto inverse = at::empty({rows + 1}, row_of.options());  // pairs that are left out land behind the last row
  inverse.scatter_(0, at::where(pairs.ge(0), pairs, rows), at::arange(pairs.numel(), row_of.options()));
  return inverse.narrow(0, 0, rows);
}

}  // namespace

at::Tensor gather_rows_cpu(const at::Tensor& x, const at::Tensor& index) {
  auto rows = index.numel(), width = x.size(1);
  auto out = at::empty({rows, width}, x.options());
  dispatch_kernel(x, "gather_rows", [&]<class T>() {
    auto* from = x.const_data_ptr<T>();
    auto* row = index.const_data_ptr<std::int64_t>();
    auto* to = out.mutable_data_ptr<T>();
    at::parallel_for(0, rows, rows_per_thread(width), [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) std::memcpy(to + i * width, from + row[i] * width, width * sizeof(T));
    });
  });
  return out;
}

at::Tensor gather_rows_aten(const at::Tensor& x, const at::Tensor& index) {
  if (has_kernels(x)) return gather_rows_device(x, index);
  return at::index_select(x, 0, index);
}

at::Tensor sum_rows_cpu(const at::Tensor& rows, const at::Tensor& row_of, const at::Tensor& weights) {
  auto tokens = row_of.size(0), top_k = row_of.size(1), width = rows.size(1);
  auto out = at::empty({tokens, width}, rows.options());
  dispatch_kernel(rows, "sum_rows", [&]<class T>() {
    auto* from = rows.const_data_ptr<T>();
    auto* row = row_of.const_data_ptr<std::int64_t>();
    auto* weight = data_or_null<float>(weights);
    auto* to = out.mutable_data_ptr<T>();
    at::parallel_for(0, tokens, rows_per_thread(width * top_k), [&](std::int64_t begin, std::int64_t end) {
      for (auto t = begin; t < end; ++t) {
        sum_token(from, row + t * top_k, weight ? weight + t * top_k : nullptr, to + t * width, top_k, width);
      }
    });
  });
  return out;
}

at::Tensor sum_rows_aten(const at::Tensor& rows, const at::Tensor& row_of, const at::Tensor& weights) {
  if (has_kernels(rows)) return sum_rows_device(rows, row_of, weights);
  auto sum = at::zeros({row_of.size(0), rows.size(1)}, rows.options().dtype(at::kFloat));
  for (std::int64_t k = 0; k < row_of.size(1) && rows.size(0) > 0; ++k) {
    const PairColumn pairs(row_of, k);
    auto term = at::index_select(rows, 0, pairs.index).to(at::kFloat);
    if (weights.defined()) term = term * weights.narrow(1, k, 1);
    sum += at::where(pairs.kept, term, 0.0);
  }
  return sum.to(rows.scalar_type());
}

SumRowsBackward sum_rows_backward_cpu(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& row_of,
                                      const at::Tensor& weights) {
  auto tokens = row_of.size(0), top_k = row_of.size(1), width = rows.size(1);
  SumRowsBackward out{at::empty_like(rows), at::zeros(weights.sizes(), weights.options())};
  dispatch_kernel(rows, "sum_rows_backward", [&]<class T>() {
    auto *g = grad.const_data_ptr<T>(), *from = rows.const_data_ptr<T>();
    auto* row = row_of.const_data_ptr<std::int64_t>();
    auto* weight = weights.const_data_ptr<float>();
    auto* to = out.grad_rows.mutable_data_ptr<T>();
    auto* grad_weight = out.grad_weights.mutable_data_ptr<float>();
    at::parallel_for(0, tokens, rows_per_thread(width * top_k), [&](std::int64_t begin, std::int64_t end) {
      for (auto pair = begin * top_k; pair < end * top_k; ++pair) {
        if (row[pair] < 0) continue;
        auto* token = g + pair / top_k * width;
        auto at = row[pair] * width;
        grad_weight[pair] = backward_pair(token, from + at, weight[pair], to + at, width);
      }
    });
  });
  return out;
}

SumRowsBackward sum_rows_backward_aten(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& row_of,
                                       const at::Tensor& weights) {
  if (has_kernels(rows)) {
    auto [grad_rows, grad_weights] = sum_rows_backward_device(grad, rows, row_of, weights);
    return {grad_rows, grad_weights};
  }
  SumRowsBackward out{at::empty_like(rows), at::zeros(weights.sizes(), weights.options())};
  if (rows.size(0) == 0) return out;
  auto pair_of = pairs_of_rows(row_of, rows.size(0));
  auto weight = at::index_select(weights.reshape({-1}), 0, pair_of).unsqueeze(1);
  auto token = pair_of.div(row_of.size(1), "floor");
  out.grad_rows.copy_(at::index_select(grad, 0, token).to(at::kFloat) * weight);
  for (std::int64_t k = 0; k < row_of.size(1); ++k) {
    const PairColumn pairs(row_of, k);
    auto products = grad.to(at::kFloat) * at::index_select(rows, 0, pairs.index).to(at::kFloat);
    out.grad_weights.narrow(1, k, 1).copy_(at::where(pairs.kept, products.sum(1, true), 0.0));
  }
  return out;
}

}  // namespace meshard
