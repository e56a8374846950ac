#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "nn/cross_entropy.h"
#include "nn/kernel_dispatch.h"
#include "nn/simd.h"

namespace meshard {

namespace {

using simd::Floats;

float row_max(const float* row, std::int64_t size) {
  Floats highest = simd::splat(-std::numeric_limits<float>::infinity());
  simd::for_each(size, [&](std::int64_t i, std::int64_t count) {
    highest = simd::max(highest, simd::keep_first(simd::load(row + i, count), count, highest[0]));
  });
  return simd::max(highest);
}

/// Returns the loss; with grad_scale the row becomes its gradient.
float loss_of_row(float* row, std::int64_t size, std::int64_t target, float grad_scale) {
  const float max = row_max(row, size), at_target = row[target];
  Floats total = {};
  simd::for_each(size, [&](std::int64_t i, std::int64_t count) {
    const Floats p = simd::keep_first(simd::exp(simd::load(row + i, count) - max), count, 0.0f);
    if (grad_scale != 0.0f) simd::store(row + i, p, count);
    total += p;
  });
  const float sum = simd::sum(total);
  if (grad_scale != 0.0f) {
    const float factor = grad_scale / sum;
    simd::for_each(size, [&](std::int64_t i, std::int64_t count) {
      simd::store(row + i, simd::load(row + i, count) * factor, count);
    });
    row[target] -= grad_scale;
  }
  return max + std::log(sum) - at_target;
}

}  // namespace

at::Tensor cross_entropy_rows_cpu(at::Tensor& logits, const at::Tensor& targets, double grad_scale) {
  auto rows = logits.size(0), vocab = logits.size(1);
  auto losses = at::empty({rows}, logits.options());
  auto* plogits = logits.mutable_data_ptr<float>();
  auto* plosses = losses.mutable_data_ptr<float>();
  auto* ptargets = targets.const_data_ptr<std::int64_t>();
  auto scale = static_cast<float>(grad_scale);
  at::parallel_for(0, rows, std::max<std::int64_t>(1, kParallelGrain / vocab),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (auto row = begin; row < end; ++row) {
                       float* logit = plogits + row * vocab;
                       const bool ignored = ptargets[row] == kIgnoredTarget;
                       plosses[row] = ignored ? 0.0f : loss_of_row(logit, vocab, ptargets[row], scale);
                       if (ignored && scale != 0.0f) std::fill_n(logit, vocab, 0.0f);
                     }
                   });
  return losses;
}

at::Tensor cross_entropy_rows_aten(at::Tensor& logits, const at::Tensor& targets, double grad_scale) {
  auto valid = targets.ne(kIgnoredTarget);
  auto column = at::where(valid, targets, 0).unsqueeze(1);
  auto losses = at::logsumexp(logits, 1) - at::gather(logits, 1, column).squeeze(1);
  if (grad_scale != 0.0) {
    auto grad = at::softmax(logits, 1) * grad_scale;
    grad.scatter_add_(1, column, at::full_like(column, -grad_scale, logits.options()));
    logits.copy_(grad * valid.unsqueeze(1));
  }
  return at::where(valid, losses, 0.0);
}

}  // namespace meshard
