#pragma once
// The project's only precompiled header: the narrow core of LibTorch that every room with tensors needs.
// Operators come from ATen/ops/<name>.h, one by one, in the .cpp that calls them.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>
