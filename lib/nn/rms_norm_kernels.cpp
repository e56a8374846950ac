#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>

#include "nn/device/launch.h"
#include "nn/kernel_dispatch.h"
#include "nn/rms_norm.h"
#include "nn/simd.h"

namespace meshard {

namespace {

using simd::Floats;

constexpr std::int64_t kBlockRows = 64;  // one partial sum of the weight's gradient; fixed, so the sum's order is too

template <class T>
void normalise_row(const T* x, const T* addend, const T* weight, T* sum, T* normed, float* rstd, std::int64_t size,
                   double eps) {
  Floats squares = {};
  simd::for_each(size, [&](std::int64_t i, std::int64_t count) {
    Floats v = simd::load(x + i, count);
    if (addend) {
      v = simd::rounded_to(T(), v + simd::load(addend + i, count));
      simd::store(sum + i, v, count);
    }
    squares += v * v;
  });
  const float scale = 1.0f / std::sqrt(simd::sum(squares) / static_cast<float>(size) + static_cast<float>(eps));
  const T* source = addend ? sum : x;
  simd::for_each(size, [&](std::int64_t i, std::int64_t count) {
    const Floats unit = simd::rounded_to(T(), simd::load(source + i, count) * scale);
    simd::store(normed + i, unit * simd::load(weight + i, count), count);
  });
  *rstd = scale;
}

// grad_x = grad_sum + rstd * (w g - xhat mean(w g xhat)); grad_weight += g xhat.
template <class T>
void backward_row(const T* grad, const T* grad_sum, const T* sum, const T* weight, T* grad_x, float* grad_weight,
                  float rstd, std::int64_t size) {
  Floats products = {};
  simd::for_each(size, [&](std::int64_t i, std::int64_t count) {
    const Floats g = simd::load(grad + i, count);
    const Floats xhat = simd::load(sum + i, count) * rstd;
    products += g * simd::load(weight + i, count) * xhat;
    const Floats unit = simd::rounded_to(T(), xhat);
    simd::store(grad_weight + i, simd::load(grad_weight + i, count) + g * unit, count);
  });
  const float mean = simd::sum(products) / static_cast<float>(size);
  simd::for_each(size, [&](std::int64_t i, std::int64_t count) {
    const Floats xhat = simd::load(sum + i, count) * rstd;
    const Floats wg = simd::load(grad + i, count) * simd::load(weight + i, count);
    Floats result = (wg - xhat * mean) * rstd;
    if (grad_sum) result += simd::load(grad_sum + i, count);
    simd::store(grad_x + i, result, count);
  });
}

std::int64_t grain_rows(std::int64_t size) {
  return std::max<std::int64_t>(1, kParallelGrain / size);
}

}  // namespace

RmsNormForward rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& addend, const at::Tensor& weight,
                                    double eps) {
  auto rows = x.size(0), size = x.size(1);
  RmsNormForward out{addend.defined() ? at::empty_like(x) : at::Tensor(), at::empty_like(x),
                     at::empty({rows}, x.options().dtype(at::kFloat))};
  dispatch_kernel(x, "rms_norm", [&]<class T>() {
    auto* px = x.const_data_ptr<T>();
    auto* pa = data_or_null<T>(addend);
    auto* pw = weight.const_data_ptr<T>();
    auto* psum = addend.defined() ? out.sum.mutable_data_ptr<T>() : nullptr;
    auto* pnormed = out.normed.mutable_data_ptr<T>();
    auto* prstd = out.rstd.mutable_data_ptr<float>();
    at::parallel_for(0, rows, grain_rows(size), [&](std::int64_t begin, std::int64_t end) {
      for (auto row = begin; row < end; ++row) {
        auto at = row * size;
        normalise_row(px + at, pa ? pa + at : pa, pw, psum ? psum + at : psum, pnormed + at, prstd + row, size, eps);
      }
    });
  });
  return out;
}

RmsNormForward rms_norm_forward_aten(const at::Tensor& x, const at::Tensor& addend, const at::Tensor& weight,
                                     double eps) {
  if (has_kernels(x)) return rms_norm_forward_device(x, addend, weight, eps);
  RmsNormForward out;
  if (addend.defined()) out.sum = x + addend;
  auto wide = (addend.defined() ? out.sum : x).to(at::kFloat);
  auto rstd = at::rsqrt(at::mean(wide * wide, -1, /*keepdim=*/true) + eps);
  out.normed = (wide * rstd).to(x.scalar_type()) * weight;
  out.rstd = rstd.squeeze(-1);
  return out;
}

RmsNormBackward rms_norm_backward_cpu(const at::Tensor& grad_normed, const at::Tensor& grad_sum, const at::Tensor& sum,
                                      const at::Tensor& rstd, const at::Tensor& weight) {
  auto rows = sum.size(0), size = sum.size(1);
  auto blocks = (rows + kBlockRows - 1) / kBlockRows;
  auto partial = at::zeros({blocks, size}, rstd.options());
  auto grad_x = at::empty_like(sum);
  dispatch_kernel(sum, "rms_norm_backward", [&]<class T>() {
    auto* pgrad = grad_normed.const_data_ptr<T>();
    auto* pgrad_sum = data_or_null<T>(grad_sum);
    auto* psum = sum.const_data_ptr<T>();
    auto* pweight = weight.const_data_ptr<T>();
    auto* prstd = rstd.const_data_ptr<float>();
    auto* pgrad_x = grad_x.mutable_data_ptr<T>();
    auto* ppartial = partial.mutable_data_ptr<float>();
    at::parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto row = begin * kBlockRows; row < std::min(end * kBlockRows, rows); ++row) {
        auto at = row * size;
        backward_row(pgrad + at, pgrad_sum ? pgrad_sum + at : nullptr, psum + at, pweight, pgrad_x + at,
                     ppartial + row / kBlockRows * size, prstd[row], size);
      }
    });
  });
  return {grad_x, at::sum(partial, 0)};
}

RmsNormBackward rms_norm_backward_aten(const at::Tensor& grad_normed, const at::Tensor& grad_sum, const at::Tensor& sum,
                                       const at::Tensor& rstd, const at::Tensor& weight) {
  if (has_kernels(sum)) return rms_norm_backward_device(grad_normed, grad_sum, sum, rstd, weight);
  auto scale = rstd.unsqueeze(-1);
  auto xhat = sum.to(at::kFloat) * scale;
  auto grad = grad_normed.to(at::kFloat);
  auto wg = grad * weight.to(at::kFloat);
  auto grad_x = (wg - xhat * at::mean(wg * xhat, -1, /*keepdim=*/true)) * scale;
  if (grad_sum.defined()) grad_x = grad_x + grad_sum;
  return {grad_x.to(sum.scalar_type()), at::sum(grad * xhat.to(sum.scalar_type()).to(at::kFloat), 0)};
}

}  // namespace meshard
