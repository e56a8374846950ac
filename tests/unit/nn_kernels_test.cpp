#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "base/error.h"
#include "nn/attention.h"
#include "nn/attention_cpu.h"
#include "nn/cross_entropy.h"
#include "nn/embedding.h"
#include "nn/rms_norm.h"
#include "nn/swiglu.h"

using namespace meshard;
namespace data = boost::unit_test::data;

namespace {

auto kDtypes = data::make({at::kFloat, at::kBFloat16});

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape).to(dtype);
}

double number(const at::Tensor& scalar) {
  return scalar.to(at::kFloat).item<float>();
}

bool close(const at::Tensor& a, const at::Tensor& b, double atol = 1e-5) {
  const double rtol = a.scalar_type() == at::kBFloat16 || b.scalar_type() == at::kBFloat16 ? 1.6e-2 : 1.3e-6;
  return a.sizes() == b.sizes() && at::allclose(a.to(at::kFloat), b.to(at::kFloat), rtol, atol);
}

}  // namespace

// Catches: a tail that reads past the row, statistics in bf16, a wrong eps; 19 is no multiple of the vector width.
BOOST_DATA_TEST_CASE(rms_norm_forward, kDtypes* data::make({19, 64}), dtype, size) {
  auto x = random({37, size}, dtype), addend = random({37, size}, dtype), weight = random({size}, dtype);
  for (auto& a : {at::Tensor(), addend}) {
    auto fused = rms_norm_forward_cpu(x, a, weight, 1e-5), twin = rms_norm_forward_aten(x, a, weight, 1e-5);
    BOOST_TEST(close(fused.normed, twin.normed));
    BOOST_TEST(close(fused.rstd, twin.rstd));
    BOOST_TEST(fused.sum.defined() == a.defined());
    if (a.defined()) BOOST_TEST(at::equal(fused.sum, x + a));
  }
  double squares = 0.0;
  for (int i = 0; i < size; ++i) squares += std::pow(number(x[3][i]), 2);
  const double expected = number(x[3][1]) / std::sqrt(squares / size + 1e-5) * number(weight[1]);
  BOOST_TEST(number(rms_norm_forward_cpu(x, {}, weight, 1e-5).normed[3][1]) == expected,
             boost::test_tools::tolerance(dtype == at::kFloat ? 1e-5 : 1.6e-2));
}

// Catches: a lost residual gradient, a weight gradient that skips rows of the last block, sums that depend on threads.
BOOST_DATA_TEST_CASE(rms_norm_backward, kDtypes* data::make({19, 64}), dtype, size) {
  auto sum = random({150, size}, dtype), weight = random({size}, dtype);
  auto grad = random({150, size}, dtype), grad_sum = random({150, size}, dtype);
  auto rstd = rms_norm_forward_cpu(sum, {}, weight, 1e-5).rstd;
  for (auto& g : {at::Tensor(), grad_sum}) {
    auto fused = rms_norm_backward_cpu(grad, g, sum, rstd, weight);
    auto twin = rms_norm_backward_aten(grad, g, sum, rstd, weight);
    BOOST_TEST(close(fused.grad_x, twin.grad_x, dtype == at::kFloat ? 1e-5 : 1e-3));
    BOOST_TEST(close(fused.grad_weight, twin.grad_weight, 1e-4));
  }
}

// Catches: sigmoid's polynomial off, silu not rounded as ATen rounds it, a gradient of the wrong factor.
BOOST_DATA_TEST_CASE(swiglu, kDtypes, dtype) {
  auto gate = random({7, 45}, dtype) * 8, up = random({7, 45}, dtype), grad = random({7, 45}, dtype);
  BOOST_TEST(close(swiglu_forward_cpu(gate, up), swiglu_forward_aten(gate, up)));
  auto twin = swiglu_backward_aten(grad, gate, up);
  auto fused = swiglu_backward_cpu(grad.clone(), gate, up);
  BOOST_TEST(close(fused.product, twin.product));
  BOOST_TEST(close(fused.grad_gate, twin.grad_gate, dtype == at::kFloat ? 1e-5 : 1e-3));
  BOOST_TEST(close(fused.grad_up, twin.grad_up));
}

// Catches: NaN or infinity swallowed by a clamp or a polynomial: the trainer's finite check relies on seeing them.
BOOST_AUTO_TEST_CASE(nonfinite_values_stay_visible) {
  auto gate = at::randn({3, 16});
  gate[1][4] = std::nan("");
  BOOST_TEST(swiglu_forward_cpu(gate, at::randn({3, 16})).isnan().sum().item<std::int64_t>() == 1);
  auto logits = at::randn({3, 16});
  logits[2][7] = std::nan("");
  auto losses = cross_entropy_rows_cpu(logits, at::zeros({3}, at::kLong), 1.0);
  BOOST_TEST(losses.isnan().sum().item<std::int64_t>() == 1);
  auto q = at::randn({1, 20, 2, 8});
  q[0][5][1][0] = std::nan("");
  const RotaryTable table(32, 8, 10000.0, at::kCPU);
  auto out = rotary_attention(q, at::randn({1, 20, 1, 8}), at::randn({1, 20, 1, 8}), table.first(20, at::kCPU));
  BOOST_TEST(out.isnan().sum().item<std::int64_t>() == 8);
}

// Catches: an ignored row with a gradient, the target's own term missing, a tail of the vocabulary left out.
BOOST_DATA_TEST_CASE(cross_entropy_rows, data::make({5, 264, 1003}), vocab) {
  auto logits = at::randn({33, vocab}) * 5;
  auto targets = at::randint(0, vocab, {33}, at::kLong);
  targets[4] = kIgnoredTarget;
  auto fused = logits.clone(), twin = logits.clone(), untouched = logits.clone();
  BOOST_TEST(close(cross_entropy_rows_cpu(fused, targets, 0.25), cross_entropy_rows_aten(twin, targets, 0.25)));
  BOOST_TEST(close(fused, twin, 1e-6));
  BOOST_TEST(number(fused[4].abs().sum()) == 0.0);
  auto losses = cross_entropy_rows_cpu(untouched, targets, 0.0);
  BOOST_TEST(at::equal(untouched, logits));
  double sum = 0.0;
  for (int i = 0; i < vocab; ++i) sum += std::exp(number(logits[0][i]));
  const double expected = std::log(sum) - number(logits[0].index_select(0, targets.slice(0, 0, 1)));
  BOOST_TEST(number(losses[0]) == expected, boost::test_tools::tolerance(1e-5));
  BOOST_TEST(number(losses[4]) == 0.0);
}

// Catches: a token counted twice or not at all, rows without a token left as garbage, beta ignored.
BOOST_DATA_TEST_CASE(embedding_backward, kDtypes* data::make({0, 1}), dtype, beta) {
  auto grad = random({200, 19}, dtype);
  auto ids = at::randint(0, 30, {200}, at::kLong);
  auto fused = random({40, 19}, dtype);
  auto twin = fused.clone();
  embedding_backward_cpu(grad, ids, fused, beta);
  embedding_backward_aten(grad, ids, twin, beta);
  BOOST_TEST(close(fused, twin, dtype == at::kFloat ? 1e-5 : 0.15));
  BOOST_TEST(at::equal(fused[35], beta == 0 ? at::zeros({19}, at::TensorOptions(dtype)) : twin[35]));
}

struct AttentionCase {
  std::int64_t seq, heads, kv_heads, dim, rotary_dim;
};
std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
  return out << c.seq << " positions, " << c.heads << "/" << c.kv_heads << " heads of " << c.dim << ", " << c.rotary_dim
             << " rotated";
}

auto kAttentionCases = data::make(std::vector<AttentionCase>{{1, 2, 1, 8, 8},
                                                             {7, 4, 2, 6, 6},
                                                             {50, 2, 2, 32, 32},
                                                             {97, 4, 1, 24, 12},
                                                             {256, 4, 2, 32, 32},
                                                             {530, 2, 1, 16, 16}});

// Catches: a causal mask off by one, the wrong head of a group, a rotation not undone in a gradient, a softmax that is
// not rescaled from one block of keys (512) to the next.
BOOST_DATA_TEST_CASE(attention_equals_aten, kDtypes* kAttentionCases, dtype, c) {
  const RotaryTable rotary(c.seq, c.rotary_dim, 10000.0, at::kCPU);
  auto table = rotary.first(c.seq, at::kCPU);
  std::vector<at::Tensor> fused{random({2, c.seq, c.heads, c.dim}, dtype), random({2, c.seq, c.kv_heads, c.dim}, dtype),
                                random({2, c.seq, c.kv_heads, c.dim}, dtype)};
  std::vector<at::Tensor> wide;
  for (auto& x : fused) {
    wide.push_back(x.to(at::kFloat).clone().set_requires_grad(true));
    x.set_requires_grad(true);
  }
  auto out = rotary_attention(fused[0], fused[1], fused[2], table);
  auto expected = rotary_attention_aten(wide[0], wide[1], wide[2], table);
  auto grad = random(out.sizes(), dtype);
  out.backward(grad);
  expected.backward(grad.to(at::kFloat));
  const double atol = dtype == at::kFloat ? 1e-5 : 2e-2;
  BOOST_TEST(close(out, expected, atol));
  for (int i = 0; i < 3; ++i) BOOST_TEST(close(fused[i].grad(), wide[i].grad(), 3 * atol), "gradient " << i);
}

// Catches: sums whose order follows the threads: the same step must give the same bits on 1 and 2.
BOOST_AUTO_TEST_CASE(results_do_not_depend_on_threads) {
  const RotaryTable rotary(64, 16, 10000.0, at::kCPU);
  auto table = rotary.first(64, at::kCPU);
  auto q = at::randn({3, 64, 4, 16}), k = at::randn({3, 64, 2, 16}), grad = at::randn({3, 64, 4, 16});
  auto x = at::randn({700, 48}), weight = at::randn({48}), ids = at::randint(0, 50, {700}, at::kLong);
  auto all = [&] {
    auto table_grad = at::zeros({50, 48});
    embedding_backward_cpu(x, ids, table_grad, 0);
    auto norm = rms_norm_forward_cpu(x, {}, weight, 1e-5);
    auto norm_grad = rms_norm_backward_cpu(x, {}, x, norm.rstd, weight);
    auto out = rotary_attention_forward_cpu(q, k, k, table);
    auto back = rotary_attention_backward_cpu(grad, q, k, k, out, table);
    std::vector<at::Tensor> flat;
    for (auto& t : {table_grad, norm_grad.grad_weight, out.output, back.grad_q, back.grad_k, back.grad_v}) {
      flat.push_back(t.reshape(-1));
    }
    return at::cat(flat);
  };
  at::set_num_threads(1);
  auto one = all();
  at::set_num_threads(2);
  BOOST_TEST(at::equal(all(), one));
}

// Catches: a sequence that runs off the end of the rotary table.
BOOST_AUTO_TEST_CASE(too_long_a_sequence_is_an_error) {
  const RotaryTable table(16, 8, 10000.0, at::kCPU);
  BOOST_CHECK_THROW(table.first(17, at::kCPU), ArgumentError);
}
