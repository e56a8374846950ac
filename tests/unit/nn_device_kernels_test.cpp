// What nvcc compiles for devices, run on the host: each kernel's body against ATen in fp64.
#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "base/error.h"
#include "module/device_path.h"
#include "moe/rows.h"
#include "nn/attention.h"
#include "nn/device/numerics.h"
#include "nn/gradients.h"
#include "support/host_kernels.h"

using namespace meshard;
namespace data = boost::unit_test::data;

namespace {

auto kDtypes = data::make({at::kFloat, at::kBFloat16});

struct OnHostKernels {
  DevicePathScope path;
  KernelScope kernels{kernels::kHostTable};
};

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape).to(dtype);
}

/// A leaf with the value of x.
at::Tensor wide(const at::Tensor& x) {
  return x.to(at::kDouble).detach().clone().set_requires_grad(true);
}

/// Within `roundings` halves of a unit in the last place, or `atol`.
bool near(const at::Tensor& x, const at::Tensor& expected, int roundings, double atol = 1e-5) {
  const double half_ulp = x.scalar_type() == at::kBFloat16 ? std::ldexp(1.0, -8) : std::ldexp(1.0, -22);
  return x.sizes() == expected.sizes() &&
         at::allclose(x.to(at::kDouble), expected.detach(), roundings * half_ulp, atol);
}

std::int64_t zeros_in(const at::Tensor& x) {
  return x.eq(0).sum().item<std::int64_t>();
}

at::Tensor norm_in_fp64(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt(at::mean(x * x, -1, /*keepdim=*/true) + 1e-5) * weight;
}

// Row lengths: one element, less than a vector, no multiple of one, more than one a lane, eight warps a row.
auto kSizes = data::make({1, 6, 64, 77, 520, 1032, 2050});

}  // namespace

// Catches: lanes that miss or repeat elements, a tail beyond the row, a sum in bf16, an addend rounded twice, a
// residual gradient lost, a weight's gradient that misses rows of a group or columns of a lane.
BOOST_DATA_TEST_CASE(norms_equal_fp64, kDtypes* kSizes, dtype, size) {
  const OnHostKernels scope;
  constexpr int kRows = 37;
  auto x = random({kRows, size}, dtype), addend = random({kRows, size}, dtype), weight = random({size}, dtype);
  auto grad = random({kRows, size}, dtype), grad_sum = random({kRows, size}, dtype);
  for (bool has_addend : {false, true}) {
    auto out = rms_norm_forward_aten(x, has_addend ? addend : at::Tensor(), weight, 1e-5);
    auto sum = has_addend ? at::add(x, addend) : x;
    if (has_addend) BOOST_TEST(at::equal(out.sum, sum));
    auto x64 = wide(sum), w64 = wide(weight);
    auto normed = norm_in_fp64(x64, w64);
    BOOST_TEST(near(out.normed, normed, 2));  // the unit value, then its product
    auto back = rms_norm_backward_aten(grad, has_addend ? grad_sum : at::Tensor(), sum, out.rstd, weight);
    normed.backward(grad.to(at::kDouble));
    auto grad_x = has_addend ? x64.grad() + grad_sum : x64.grad();
    BOOST_TEST(near(back.grad_x, grad_x, 1, 2e-5));
    // Each row's unit value is rounded as in the forward.
    BOOST_TEST(near(back.grad_weight, w64.grad(), 1, dtype == at::kFloat ? 1e-4 : 0.1));
  }
}

// Catches: more rows than groups (4096 of narrow rows, 512 of wide ones) lost from a weight's gradient.
BOOST_DATA_TEST_CASE(weight_gradients_of_many_rows, data::make({8, 520}), size) {
  const OnHostKernels scope;
  auto rows = size == 8 ? 9001 : 1100;
  auto x = random({rows, size}, at::kFloat), grad = random({rows, size}, at::kFloat), weight = at::ones({size});
  auto out = rms_norm_forward_aten(x, {}, weight, 1e-5);
  auto back = rms_norm_backward_aten(grad, {}, x, out.rstd, weight);
  auto x64 = wide(x), w64 = wide(weight);
  norm_in_fp64(x64, w64).backward(grad.to(at::kDouble));
  BOOST_TEST(near(back.grad_weight, w64.grad(), 1, 2e-3));
}

struct RotaryCase {
  std::int64_t dim, half;
  kernels::Pairing pairing;
};
std::ostream& operator<<(std::ostream& out, const RotaryCase& c) {
  return out << 2 * c.half << " of " << c.dim
             << (c.pairing == kernels::Pairing::Halves ? " by halves" : " by neighbours");
}

auto kRotaryCases = data::make(std::vector<RotaryCase>{{8, 4, kernels::Pairing::Halves},
                                                       {8, 4, kernels::Pairing::Neighbours},
                                                       {32, 16, kernels::Pairing::Halves},
                                                       {32, 16, kernels::Pairing::Neighbours},
                                                       {48, 8, kernels::Pairing::Halves},
                                                       {48, 8, kernels::Pairing::Neighbours},
                                                       {14, 3, kernels::Pairing::Halves},
                                                       {14, 3, kernels::Pairing::Neighbours}});

// Catches: the wrong partner of a pair, the angles of another position or head, a part of a head that should stay
// turned or lost, turning back that is not the transpose, whole vectors unlike single elements.
BOOST_DATA_TEST_CASE(rotary_equals_fp64, kDtypes* kRotaryCases, dtype, c) {
  const OnHostKernels scope;
  auto x = random({2, 5, 3, c.dim}, dtype), angle = at::randn({5, c.half});
  auto cos = angle.cos(), sin = angle.sin();
  auto cos64 = cos.to(at::kDouble).unsqueeze(1), sin64 = sin.to(at::kDouble).unsqueeze(1);
  auto x64 = wide(x);
  auto turning = x64.narrow(-1, 0, 2 * c.half), rest = x64.narrow(-1, 2 * c.half, c.dim - 2 * c.half);
  at::Tensor expected;
  if (c.pairing == kernels::Pairing::Halves) {
    auto a = turning.narrow(-1, 0, c.half), b = turning.narrow(-1, c.half, c.half);
    expected = at::cat({a * cos64 - b * sin64, b * cos64 + a * sin64, rest}, -1);
  } else {
    auto pairs = turning.unflatten(-1, {c.half, 2});
    auto a = pairs.select(-1, 0), b = pairs.select(-1, 1);
    expected = at::cat({at::stack({a * cos64 - b * sin64, b * cos64 + a * sin64}, -1).flatten(-2), rest}, -1);
  }
  auto turned = at::full_like(x, std::nan("")), in_place = x.clone();
  rotate_device(x, turned, cos, sin, c.pairing, 1.0f);
  rotate_device(in_place, in_place, cos, sin, c.pairing, 1.0f);
  BOOST_TEST(near(turned, expected, 1));
  BOOST_TEST(at::equal(in_place, turned));

  auto grad = random(x.sizes(), dtype), back = at::full_like(x, std::nan(""));
  rotate_device(grad, back, cos, sin, c.pairing, -1.0f);
  expected.backward(grad.to(at::kDouble));
  BOOST_TEST(near(back, x64.grad(), 1));
}

// Catches: the wrong half or stride of rows that hold gate and up, a factor of silu's derivative, one rounding too
// many.
BOOST_DATA_TEST_CASE(swiglu_equals_fp64, kDtypes* data::make({5, 16, 45}), dtype, width) {
  const OnHostKernels scope;
  auto gate_up = random({7, 2 * width}, dtype) * 3, grad = random({7, width}, dtype);
  auto gate = gate_up.narrow(1, 0, width).contiguous(), up = gate_up.narrow(1, width, width).contiguous();
  auto g64 = wide(gate), u64 = wide(up);
  auto product = at::silu(g64) * u64;
  product.backward(grad.to(at::kDouble));

  BOOST_TEST(near(swiglu_forward_aten(gate, up), product, 2));
  BOOST_TEST(at::equal(swiglu_rows_forward_aten(gate_up), swiglu_forward_aten(gate, up)));
  auto back = swiglu_backward_aten(grad, gate, up);
  BOOST_TEST(near(back.product, product, 2));
  BOOST_TEST(near(back.grad_gate, g64.grad(), 1));
  BOOST_TEST(near(back.grad_up, u64.grad(), 2));
  auto rows = swiglu_rows_backward_aten(grad, gate_up);
  BOOST_TEST(at::equal(rows.product, back.product));
  BOOST_TEST(at::equal(rows.grad_gate_up, at::cat({back.grad_gate, back.grad_up}, 1)));
}

// Catches: padding that is not zero, a dropped pair that counts, weights of another token, a pair's gradient to another
// row, sums that are rounded before they are complete.
BOOST_DATA_TEST_CASE(expert_rows_equal_fp64, kDtypes* data::make({3, 16, 1030}), dtype, width) {
  const OnHostKernels scope;
  constexpr int kTokens = 9, kTopK = 2;
  auto x = random({kTokens, width}, dtype);
  auto index = at::randint(-1, kTokens, {23}, at::kLong);
  index[4] = -1;
  auto padded = at::cat({x, at::zeros({1, width}, x.options())});
  BOOST_TEST(at::equal(gather_rows_aten(x, index), at::index_select(padded, 0, index.remainder(kTokens + 1))));

  auto rows = random({kTokens * kTopK - 1, width}, dtype), weights = at::rand({kTokens, kTopK});
  auto row_of = at::randperm(kTokens * kTopK, at::kLong).sub_(1).view({kTokens, kTopK});  // one of them is dropped
  auto r64 = wide(rows), w64 = wide(weights);
  auto all = at::cat({r64, at::zeros({1, width}, r64.options())});
  auto picked = at::index_select(all, 0, row_of.remainder(kTokens * kTopK).view({-1})).view({kTokens, kTopK, width});
  auto sum = (picked * w64.unsqueeze(2)).sum(1);
  BOOST_TEST(near(sum_rows_aten(rows, row_of, weights), sum, 1));
  BOOST_TEST(near(sum_rows_aten(rows, row_of, {}), picked.sum(1), 1));
  auto grad = random({kTokens, width}, dtype);
  sum.backward(grad.to(at::kDouble));
  auto back = sum_rows_backward_aten(grad, rows, row_of, weights);
  BOOST_TEST(near(back.grad_rows, r64.grad(), 1));
  BOOST_TEST(near(back.grad_weights, w64.grad(), 1, 1e-4));
  BOOST_TEST(zeros_in(back.grad_weights) == 1);
}

// Catches: a row of floats whose rounding to bf16 is not to nearest even, or turns NaN into a number or infinity.
BOOST_AUTO_TEST_CASE(bf16_is_rounded_as_aten_rounds) {
  auto x = at::cat({at::randn({4096}) * 1e3, at::full({1}, std::nan("")), at::full({1}, INFINITY),
                    at::full({1}, -3.4e38f), at::full({1}, 1.00390625f), at::full({1}, 1.01171875f)});
  auto* value = x.const_data_ptr<float>();
  auto expected = x.to(at::kBFloat16).to(at::kFloat);
  auto* wanted = expected.const_data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    auto got = kernels::rounded<kernels::BFloat16>(value[i]);
    BOOST_REQUIRE_MESSAGE(got == wanted[i] || (std::isnan(got) && std::isnan(wanted[i])), value[i] << " to " << got);
  }
}

// Catches: a kernel that is given what it would read beyond: the launch layer must refuse it by name.
BOOST_AUTO_TEST_CASE(shapes_are_checked_before_a_launch) {
  const OnHostKernels scope;
  auto x = at::randn({4, 8});
  auto wrong = [&](auto call, const char* name) {
    BOOST_CHECK_EXCEPTION(call(), ShapeError,
                          [&](const ShapeError& e) { return std::string(e.what()).find(name) != std::string::npos; });
  };
  wrong([&] { rms_norm_forward_aten(x, {}, at::randn({7}), 1e-5); }, "rms_norm_forward");
  wrong([&] { rms_norm_forward_aten(x.t(), {}, at::randn({4}), 1e-5); }, "rms_norm_forward");
  wrong([&] { rms_norm_backward_aten(x, at::randn({4, 7}), x, at::randn({4}), at::randn({8})); }, "rms_norm_backward");
  wrong([&] { swiglu_forward_aten(x, x.to(at::kBFloat16)); }, "swiglu_forward");
  wrong([&] { swiglu_rows_backward_aten(at::randn({4, 8}), x); }, "swiglu_rows_backward");
  wrong([&] { gather_rows_aten(x, at::zeros({3}, at::kInt)); }, "gather_rows");
  wrong([&] { sum_rows_aten(x, at::zeros({4, 2}, at::kLong), at::randn({4, 3})); }, "sum_rows");
  auto heads = at::randn({1, 4, 2, 8});
  wrong(
      [&] {
        rotate_device(heads, heads, at::randn({3, 4}), at::randn({3, 4}), kernels::Pairing::Halves, 1.0f);
      },
      "rotary");
}

// Catches: attention whose turned queries are not turned back in their gradient, or turned twice when in place.
BOOST_DATA_TEST_CASE(attention_with_kernels_equals_the_twin, kDtypes, dtype) {
  const RotaryTable rotary(20, 12, 10000.0, at::kCPU);
  auto table = rotary.first(20, at::kCPU);
  auto q = random({2, 20, 4, 16}, dtype), k = random({2, 20, 2, 16}, dtype), v = random({2, 20, 2, 16}, dtype);
  auto grad = random({2, 20, 4, 16}, dtype);
  auto run = [&] {
    std::vector<at::Tensor> in;
    for (auto& x : {q, k, v}) in.push_back(x.clone().set_requires_grad(true));
    // As in a model: what is turned in place is no leaf.
    auto out = rotary_attention(in[0] * 1, in[1] * 1, in[2], table);
    out.backward(grad);
    return std::vector{out, in[0].grad(), in[1].grad(), in[2].grad()};
  };
  const DevicePathScope path;
  auto expected = run();
  const KernelScope scope(kernels::kHostTable);
  auto got = run();
  for (int i = 0; i < 4; ++i)
    BOOST_TEST(near(got[i], expected[i].to(at::kDouble), 4, dtype == at::kFloat ? 1e-5 : 3e-2));
}

// Catches: the math kernel in bf16 let through, refused in fp32, or a choice that has the wrong name.
BOOST_AUTO_TEST_CASE(the_kernel_of_attention_has_a_name) {
  auto name = [](at::SDPBackend choice, at::ScalarType dtype) {
    return checked_backend(static_cast<std::int64_t>(choice), {1, 8, 4, 2, 64}, dtype);
  };
  BOOST_TEST(name(at::SDPBackend::flash_attention, at::kBFloat16) == "flash");
  BOOST_TEST(name(at::SDPBackend::cudnn_attention, at::kBFloat16) == "cuDNN");
  BOOST_TEST(name(at::SDPBackend::math, at::kFloat) == "math");
  BOOST_CHECK_EXCEPTION(name(at::SDPBackend::math, at::kBFloat16), ConfigError, [](const ConfigError& e) {
    return std::string(e.what()).find("4 heads of 64 elements (2 for keys and values) in BFloat16") !=
           std::string::npos;
  });
  BOOST_TEST(attention_backend({}, at::kBFloat16, at::kCPU) == "fused");
}

// Catches: a gradient rounded to bf16 on its way into a sink of fp32, or beta ignored there; one that goes there on a
// CPU, whose results would change.
BOOST_DATA_TEST_CASE(gradients_of_bf16_go_unrounded_into_fp32, data::make({false, true}), on_device) {
  const DevicePathScope path(on_device);
  auto slot = std::make_shared<Slot>();
  slot->shape = {3, 5};
  slot->dtype = at::kBFloat16;
  slot->sink = {at::full({3, 5}, std::nan(""), at::kFloat), false};
  const Parameter parameter(slot);
  auto grad = random({40, 3}, at::kBFloat16), x = random({40, 5}, at::kBFloat16);
  auto first = weight_gradient(parameter, grad, x), second = weight_gradient(parameter, grad, x);
  BOOST_TEST(first.defined() == !on_device);
  if (!on_device) return;
  auto exact = grad.t().to(at::kDouble).mm(x.to(at::kDouble)) * 2;
  BOOST_TEST(slot->sink.filled);
  BOOST_TEST(near(slot->sink.grad, exact, 8));
}
