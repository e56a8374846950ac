#include "nn/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <fmt/format.h>

#include "base/error.h"

namespace meshard {

namespace {

// In fp32 like Hugging Face: the angles of far positions depend on it.
at::Tensor angles(std::int64_t max_positions, std::int64_t rotary_dim, double theta) {
  auto exponent = at::arange(0, rotary_dim, 2, at::kFloat) / static_cast<double>(rotary_dim);
  return at::outer(at::arange(max_positions, at::kFloat), at::pow(at::Scalar(theta), exponent).reciprocal());
}

}  // namespace

RotaryTable::RotaryTable(std::int64_t max_positions, std::int64_t rotary_dim, double theta, at::Device device) {
  auto where = device.is_meta() ? at::Device(at::kCPU) : device;
  cos_ = add_buffer(
      "cos", [=] { return angles(max_positions, rotary_dim, theta).cos(); }, where, false);
  sin_ = add_buffer(
      "sin", [=] { return angles(max_positions, rotary_dim, theta).sin(); }, where, false);
}

RotaryTable::Slice RotaryTable::first(std::int64_t positions, at::Device device) const {
  if (positions > cos_.size(0)) {
    throw ArgumentError(fmt::format("a sequence of {} tokens is longer than model.max_position_embeddings = {}",
                                    positions, cos_.size(0)));
  }
  if (device == cos_.device()) return {cos_.narrow(0, 0, positions), sin_.narrow(0, 0, positions)};
  if (!elsewhere_.cos.defined() || elsewhere_.cos.device() != device) elsewhere_ = {cos_.to(device), sin_.to(device)};
  return {elsewhere_.cos.narrow(0, 0, positions), elsewhere_.sin.narrow(0, 0, positions)};
}

at::Tensor RotaryTable::forward(const at::Tensor& input) {
  throw LogicError("RotaryTable holds tables and computes nothing: use first()");
}

at::Tensor rotate(const at::Tensor& x, const RotaryTable::Slice& table) {
  auto half = table.cos.size(1);
  auto cos = table.cos.unsqueeze(1), sin = table.sin.unsqueeze(1);
  auto a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  auto turned = at::cat({a * cos - b * sin, b * cos + a * sin}, -1).to(x.scalar_type());
  if (2 * half == x.size(-1)) return turned;
  return at::cat({turned, x.narrow(-1, 2 * half, x.size(-1) - 2 * half)}, -1);
}

}  // namespace meshard
