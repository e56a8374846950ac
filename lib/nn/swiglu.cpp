#include "nn/swiglu.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include <algorithm>

#include "nn/device/launch.h"
#include "nn/kernel_dispatch.h"
#include "nn/simd.h"

namespace meshard {

namespace {

using simd::Floats;

Floats sigmoid(Floats x) {
  return 1.0f / (1.0f + simd::exp(-x));
}

template <class T>
void forward_range(const T* gate, const T* up, T* product, std::int64_t n) {
  simd::for_each(n, [&](std::int64_t i, std::int64_t count) {
    const Floats g = simd::load(gate + i, count);
    const Floats silu = simd::rounded_to(T(), g * sigmoid(g));
    simd::store(product + i, silu * simd::load(up + i, count), count);
  });
}

// Reads grad_product before it writes, so it may be the array of product or of grad_up.
template <class T>
void backward_range(const T* grad_product, const T* gate, const T* up, T* product, T* grad_gate, T* grad_up,
                    std::int64_t n) {
  simd::for_each(n, [&](std::int64_t i, std::int64_t count) {
    const Floats g = simd::load(gate + i, count), u = simd::load(up + i, count);
    const Floats grad = simd::load(grad_product + i, count);
    const Floats s = sigmoid(g);
    const Floats silu = simd::rounded_to(T(), g * s);
    simd::store(product + i, silu * u, count);
    simd::store(grad_gate + i, grad * u * s * (1.0f + g * (1.0f - s)), count);
    simd::store(grad_up + i, grad * silu, count);
  });
}

// Rows that are worth a thread.
std::int64_t rows_grain(std::int64_t width) {
  return std::max<std::int64_t>(1, kParallelGrain / std::max<std::int64_t>(1, width));
}

}  // namespace

at::Tensor swiglu_forward_cpu(const at::Tensor& gate, const at::Tensor& up) {
  auto product = at::empty_like(gate);
  dispatch_kernel(gate, "swiglu", [&]<class T>() {
    auto* g = gate.const_data_ptr<T>();
    auto* u = up.const_data_ptr<T>();
    auto* p = product.mutable_data_ptr<T>();
    at::parallel_for(0, gate.numel(), kParallelGrain, [&](std::int64_t begin, std::int64_t end) {
      forward_range(g + begin, u + begin, p + begin, end - begin);
    });
  });
  return product;
}

at::Tensor swiglu_forward_aten(const at::Tensor& gate, const at::Tensor& up) {
  if (has_kernels(gate)) return swiglu_forward_device(gate, up);
  return at::silu(gate) * up;
}

SwigluBackward swiglu_backward_cpu(const at::Tensor& grad_product, const at::Tensor& gate, const at::Tensor& up) {
  SwigluBackward out{at::empty_like(gate), at::empty_like(gate), grad_product};
  dispatch_kernel(gate, "swiglu_backward", [&]<class T>() {
    auto* d = grad_product.mutable_data_ptr<T>();
    auto* g = gate.const_data_ptr<T>();
    auto* u = up.const_data_ptr<T>();
    auto* p = out.product.mutable_data_ptr<T>();
    auto* dg = out.grad_gate.mutable_data_ptr<T>();
    at::parallel_for(0, gate.numel(), kParallelGrain, [&](std::int64_t begin, std::int64_t end) {
      backward_range(d + begin, g + begin, u + begin, p + begin, dg + begin, d + begin, end - begin);
    });
  });
  return out;
}

SwigluBackward swiglu_backward_aten(const at::Tensor& grad_product, const at::Tensor& gate, const at::Tensor& up) {
  if (has_kernels(gate)) return swiglu_backward_device(grad_product, gate, up);
  auto g = gate.to(at::kFloat), u = up.to(at::kFloat), grad = grad_product.to(at::kFloat);
  auto s = at::sigmoid(g);
  auto silu = at::silu(gate);
  auto dtype = gate.scalar_type();
  return {silu * up, (grad * u * s * (1.0 + g * (1.0 - s))).to(dtype), grad_product * silu};
}

at::Tensor swiglu_rows_forward_cpu(const at::Tensor& gate_up) {
  auto rows = gate_up.size(0), width = gate_up.size(1) / 2;
  auto product = at::empty({rows, width}, gate_up.options());
  dispatch_kernel(gate_up, "swiglu", [&]<class T>() {
    auto* from = gate_up.const_data_ptr<T>();
    auto* to = product.mutable_data_ptr<T>();
    at::parallel_for(0, rows, rows_grain(width), [&](std::int64_t begin, std::int64_t end) {
      for (auto row = begin; row < end; ++row) {
        auto* gate = from + 2 * row * width;
        forward_range(gate, gate + width, to + row * width, width);
      }
    });
  });
  return product;
}

at::Tensor swiglu_rows_forward_aten(const at::Tensor& gate_up) {
  if (has_kernels(gate_up)) return swiglu_rows_forward_device(gate_up);
  auto halves = gate_up.chunk(2, 1);
  return swiglu_forward_aten(halves[0], halves[1]);
}

SwigluRowsBackward swiglu_rows_backward_cpu(const at::Tensor& grad_product, const at::Tensor& gate_up) {
  auto rows = gate_up.size(0), width = gate_up.size(1) / 2;
  SwigluRowsBackward out{grad_product, at::empty_like(gate_up)};
  dispatch_kernel(gate_up, "swiglu_backward", [&]<class T>() {
    auto* from = gate_up.const_data_ptr<T>();
    auto* product = grad_product.mutable_data_ptr<T>();
    auto* to = out.grad_gate_up.mutable_data_ptr<T>();
    at::parallel_for(0, rows, rows_grain(width), [&](std::int64_t begin, std::int64_t end) {
      for (auto row = begin; row < end; ++row) {
        auto* gate = from + 2 * row * width;
        auto *grad = product + row * width, *grad_gate = to + 2 * row * width;
        backward_range(grad, gate, gate + width, grad, grad_gate, grad_gate + width, width);
      }
    });
  });
  return out;
}

SwigluRowsBackward swiglu_rows_backward_aten(const at::Tensor& grad_product, const at::Tensor& gate_up) {
  if (has_kernels(gate_up)) return swiglu_rows_backward_device(grad_product, gate_up);
  auto halves = gate_up.chunk(2, 1);
  auto out = swiglu_backward_aten(grad_product, halves[0], halves[1]);
  return {out.product, at::cat({out.grad_gate, out.grad_up}, 1)};
}

}  // namespace meshard
