#pragma once
// Which element type a CPU kernel runs on: fp32 or bf16, nothing else.

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cstdint>

#include "base/error.h"

namespace meshard {

/// Elements below which a loop is not worth a second thread.
constexpr std::int64_t kParallelGrain = 16384;

/// Local. Calls kernel.operator()<T>() with T the element type of `tensor`. ShapeError, naming `what`, for other
/// dtypes.
template <class Kernel>
void dispatch_kernel(const at::Tensor& tensor, const char* what, Kernel kernel) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return kernel.template operator()<float>();
    case at::kBFloat16:
      return kernel.template operator()<c10::BFloat16>();
    default:
      throw ShapeError(
          fmt::format("{}: dtype {} is not supported; use fp32 or bf16", what, c10::toString(tensor.scalar_type())));
  }
}

template <class T>
const T* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

}  // namespace meshard
