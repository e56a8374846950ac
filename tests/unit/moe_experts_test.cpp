#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <map>

#include "base/error.h"
#include "module/device_path.h"
#include "moe/dispatch.h"
#include "moe/experts.h"
#include "moe/moe_layer.h"
#include "moe/rows.h"
#include "moe/selection.h"
#include "nn/swiglu.h"

using namespace meshard;
namespace data = boost::unit_test::data;

namespace {

using Numbers = std::vector<std::int64_t>;

auto kDtypes = data::make({at::kFloat, at::kBFloat16});

bool close(const at::Tensor& a, const at::Tensor& b, double atol = 1e-5) {
  const double rtol = a.scalar_type() == at::kBFloat16 || b.scalar_type() == at::kBFloat16 ? 1.6e-2 : 1.3e-6;
  return a.sizes() == b.sizes() && at::allclose(a.to(at::kFloat), b.to(at::kFloat), rtol, atol);
}

at::Tensor integers(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randint(-8, 9, shape, at::kFloat).to(dtype);
}

std::int64_t at_index(const at::Tensor& index, std::int64_t i) {
  return index.view({-1}).const_data_ptr<std::int64_t>()[i];
}

// The definitions, one element at a time; exact for integers.
at::Tensor plain_sum(const at::Tensor& rows, const at::Tensor& row_of, const at::Tensor& weights) {
  auto out = at::zeros({row_of.size(0), rows.size(1)});
  for (std::int64_t pair = 0; pair < row_of.numel(); ++pair) {
    auto row = at_index(row_of, pair), token = pair / row_of.size(1);
    if (row < 0) continue;
    auto term = rows[row].to(at::kFloat);
    out[token] += weights.defined() ? term * weights.view({-1})[pair] : term;
  }
  return out.to(rows.scalar_type());
}

SumRowsBackward plain_sum_backward(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& row_of,
                                   const at::Tensor& weights) {
  SumRowsBackward out{at::full(rows.sizes(), std::nan(""), rows.options()), at::zeros(weights.sizes())};
  for (std::int64_t pair = 0; pair < row_of.numel(); ++pair) {
    auto row = at_index(row_of, pair), token = pair / row_of.size(1);
    if (row < 0) continue;
    auto g = grad[token].to(at::kFloat);
    out.grad_rows[row].copy_(g * weights.view({-1})[pair]);
    out.grad_weights.view({-1})[pair] = (g * rows[row].to(at::kFloat)).sum();
  }
  return out;
}

// `tokens` * K pairs in shuffled places; every `drop`-th one (0: none) is dropped and has no row.
at::Tensor shuffled_places(std::int64_t tokens, std::int64_t top_k, std::int64_t drop) {
  auto row_of = at::full({tokens * top_k}, kDroppedPair, at::kLong);
  std::vector<std::int64_t> kept;
  for (std::int64_t pair = 0; pair < row_of.numel(); ++pair) {
    if (drop == 0 || pair % drop != 0) kept.push_back(pair);
  }
  auto places = at::randperm(std::ssize(kept), at::kLong);
  for (std::size_t i = 0; i < kept.size(); ++i) row_of[kept[i]] = at_index(places, static_cast<std::int64_t>(i));
  return row_of.view({tokens, top_k});
}

std::int64_t kept_pairs(const at::Tensor& row_of) {
  return row_of.ge(0).sum().item<std::int64_t>();
}

}  // namespace

// Catches: rows moved to the wrong place, a tail of the row left out, an index that occurs twice.
BOOST_DATA_TEST_CASE(gather_moves_rows, kDtypes* data::make({1, 8, 19}), dtype, width) {
  auto x = at::arange(5 * width, at::kFloat).view({5, width}).to(dtype);
  auto index = at::tensor(Numbers{4, 0, 0, 3, 4}, at::kLong);
  auto out = gather_rows_cpu(x, index);
  for (std::int64_t i = 0; i < 5; ++i) BOOST_TEST(at::equal(out[i], x[at_index(index, i)]));
  BOOST_TEST(at::equal(out, gather_rows_aten(x, index)));
  auto none = at::empty({0}, at::kLong);
  for (auto& empty : {gather_rows_cpu(x, none), gather_rows_aten(x, none), gather_rows_cpu(x.narrow(0, 0, 0), none)}) {
    BOOST_TEST((empty.sizes() == at::IntArrayRef{0, width}));
  }
}

// Catches: a wrong factor, a dropped pair that counts, sums rounded after every term; small integers are exact.
BOOST_DATA_TEST_CASE(sums_of_integer_rows_are_exact, kDtypes* data::make({0, 3}), dtype, drop) {
  auto row_of = shuffled_places(11, 4, drop);
  auto rows = integers({kept_pairs(row_of), 19}, dtype), grad = integers({11, 19}, dtype);
  auto weights = integers({11, 4}, at::kFloat);
  for (auto& w : {weights, at::Tensor()}) {
    BOOST_TEST(at::equal(sum_rows_cpu(rows, row_of, w), plain_sum(rows, row_of, w)));
    BOOST_TEST(at::equal(sum_rows_aten(rows, row_of, w), plain_sum(rows, row_of, w)));
  }
  auto expected = plain_sum_backward(grad, rows, row_of, weights);
  for (auto* kernel : {sum_rows_backward_cpu, sum_rows_backward_aten}) {
    auto out = kernel(grad, rows, row_of, weights);
    BOOST_TEST(at::equal(out.grad_rows, expected.grad_rows));
    BOOST_TEST(at::equal(out.grad_weights, expected.grad_weights));
  }
}

// Catches: sums in bf16, a dot product over a part of the row, results that depend on the number of threads.
BOOST_DATA_TEST_CASE(sums_of_random_rows, kDtypes* data::make({64, 101}), dtype, width) {
  auto row_of = shuffled_places(700, 3, 5);
  auto rows = at::randn({kept_pairs(row_of), width}).to(dtype);
  auto grad = at::randn({700, width}).to(dtype), weights = at::randn({700, 3});
  auto sum = sum_rows_cpu(rows, row_of, weights);
  auto back = sum_rows_backward_cpu(grad, rows, row_of, weights);
  auto twin = sum_rows_backward_aten(grad, rows, row_of, weights);
  BOOST_TEST(close(sum, plain_sum(rows, row_of, weights)));
  BOOST_TEST(close(sum, sum_rows_aten(rows, row_of, weights)));
  BOOST_TEST(at::equal(back.grad_rows, twin.grad_rows));
  BOOST_TEST(close(back.grad_weights, twin.grad_weights, 1e-4));

  auto threads = at::get_num_threads();
  at::set_num_threads(1);
  BOOST_TEST(at::equal(sum, sum_rows_cpu(rows, row_of, weights)));
  BOOST_TEST(at::equal(back.grad_weights, sum_rows_backward_cpu(grad, rows, row_of, weights).grad_weights));
  at::set_num_threads(threads);
}

// Catches: an empty matrix that is indexed, tokens whose pairs are all dropped left as garbage.
BOOST_DATA_TEST_CASE(sums_without_rows_are_zero, data::make({0, 3}), tokens) {
  auto row_of = at::full({tokens, 2}, kDroppedPair, at::kLong);
  auto rows = at::empty({0, 19}), grad = at::ones({tokens, 19}), weights = at::ones({tokens, 2});
  for (auto* kernel : {sum_rows_cpu, sum_rows_aten}) {
    BOOST_TEST(at::equal(kernel(rows, row_of, weights), at::zeros({tokens, 19})));
  }
  for (auto* kernel : {sum_rows_backward_cpu, sum_rows_backward_aten}) {
    auto out = kernel(grad, rows, row_of, weights);
    BOOST_TEST(at::equal(out.grad_rows, rows));
    BOOST_TEST(at::equal(out.grad_weights, at::zeros({tokens, 2})));
  }
}

// Catches: the wrong half of a row, a row that takes its neighbour's.
BOOST_DATA_TEST_CASE(swiglu_of_rows_is_swiglu, kDtypes* data::make({0, 7}), dtype, rows) {
  auto gate = (at::randn({rows, 45}) * 8).to(dtype), up = at::randn({rows, 45}).to(dtype);
  auto grad = at::randn({rows, 45}).to(dtype), both = at::cat({gate, up}, 1);
  BOOST_TEST(close(swiglu_rows_forward_cpu(both), swiglu_forward_aten(gate, up)));
  BOOST_TEST(close(swiglu_rows_forward_aten(both), swiglu_forward_aten(gate, up)));
  auto expected = swiglu_backward_aten(grad, gate, up);
  for (auto* kernel : {swiglu_rows_backward_cpu, swiglu_rows_backward_aten}) {
    auto out = kernel(grad.clone(), both);
    BOOST_TEST(close(out.product, expected.product));
    BOOST_TEST(
        close(out.grad_gate_up, at::cat({expected.grad_gate, expected.grad_up}, 1), dtype == at::kFloat ? 1e-5 : 1e-3));
  }
}

// Catches: a sort that is not stable, a dropped pair with a place, counts of the wrong expert.
BOOST_AUTO_TEST_CASE(a_plan_sorts_pairs_by_expert) {
  auto ids = at::tensor(Numbers{2, 0, 0, 2, kDroppedPair, 2}, at::kLong).view({3, 2});
  auto plan = plan_dispatch(ids, 4, {});
  BOOST_TEST(at::equal(plan->token_of, at::tensor(Numbers{0, 1, 0, 1, 2}, at::kLong)));
  BOOST_TEST(at::equal(plan->row_of, at::tensor(Numbers{2, 0, 1, 3, kDroppedPair, 4}, at::kLong).view({3, 2})));
  BOOST_TEST((plan->expert_rows == Numbers{2, 0, 3, 0}));
  BOOST_TEST((plan->send_rows == Numbers{5}));
  BOOST_TEST(plan->received() == 5);
  const DevicePathScope on_host(false);  // a device is not asked: its ids come from our own choice
  BOOST_CHECK_EXCEPTION(plan_dispatch(ids, 2, {}), ArgumentError, [](const ArgumentError& error) {
    return std::string(error.what()).find("expert 2 of 2") != std::string::npos;
  });
}

// Catches: a token that comes back to another's place, a lost gradient of a token's second pair or of a weight. Plain
// autograd is the reference: rows are multiplied by 10 on the way.
BOOST_DATA_TEST_CASE(dispatch_and_combine_without_expert_parallelism, data::make({0, 3}), drop) {
  auto ids = at::tensor(Numbers{2, 0, 0, 2, 1, 2}, at::kLong).view({3, 2});
  if (drop > 0) ids.view({-1})[drop] = kDroppedPair;
  auto x = integers({3, 5}, at::kFloat).set_requires_grad(true), x2 = x.detach().clone().set_requires_grad(true);
  auto w = integers({3, 2}, at::kFloat).set_requires_grad(true), w2 = w.detach().clone().set_requires_grad(true);
  auto seed = integers({3, 5}, at::kFloat);

  auto plan = plan_dispatch(ids, 3, {});
  auto out = combine(dispatch(x, plan) * 10, w, plan);
  out.backward(seed);

  auto expected = x2 * 10 * (w2 * ids.ge(0)).sum(1, true);
  expected.backward(seed);
  BOOST_TEST(at::equal(out, expected));
  BOOST_TEST(at::equal(x.grad(), x2.grad()));
  BOOST_TEST(at::equal(w.grad(), w2.grad()));
}

namespace {

constexpr std::int64_t kHidden = 24, kWidth = 16;

MoeOptions expert_options(std::int64_t experts) {
  return {.hidden_size = kHidden, .moe_intermediate_size = kWidth, .n_routed_experts = experts};
}

std::unique_ptr<Experts> random_experts(std::int64_t experts, at::ScalarType dtype) {
  auto made = std::make_unique<Experts>(expert_options(experts), ExpertParallel{}, at::TensorOptions(dtype));
  for (auto& [name, parameter] : made->parameters()) {
    parameter.tensor().detach().copy_(at::randn(parameter.slot().shape) * 0.2);
  }
  return made;
}

at::Tensor leaf(const at::Tensor& values) {
  return values.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).set_requires_grad(true);
}

struct PlainExperts {
  at::Tensor out, grad_x, grad_gate_up, grad_down;
};

// One expert after the other, through plain autograd in fp32.
PlainExperts plain_experts(Experts& experts, const at::Tensor& rows, const Numbers& counts, const at::Tensor& seed) {
  auto x = leaf(rows), gate_up = leaf(experts.parameters()[0].parameter.tensor()),
       down = leaf(experts.parameters()[1].parameter.tensor());
  std::vector<at::Tensor> outs;
  std::int64_t first = 0;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    auto mine = x.narrow(0, first, counts[e]);
    auto block = [&](const at::Tensor& stacked, std::int64_t from, std::int64_t height) {
      return at::mm(mine, stacked.narrow(0, from, height).t());
    };
    auto base = static_cast<std::int64_t>(e) * 2 * kWidth;
    auto inner = at::silu(block(gate_up, base, kWidth)) * block(gate_up, base + kWidth, kWidth);
    outs.push_back(at::mm(inner, down.narrow(0, static_cast<std::int64_t>(e) * kHidden, kHidden).t()));
    first += counts[e];
  }
  auto out = at::cat(outs);
  out.backward(seed.to(at::kFloat));
  return {out, x.grad(), gate_up.grad(), down.grad()};
}

std::int64_t total(const Numbers& counts) {
  std::int64_t sum = 0;
  for (auto count : counts) sum += count;
  return sum;
}

const std::vector<Numbers> kCounts{{5, 9, 1}, {0, 7, 0}, {12, 0, 0}, {0, 0, 3}, {0, 0, 0}, {300, 1, 200}};

}  // namespace

// Catches: a wrong block of a stacked matrix, gate and up exchanged, an expert without rows whose gradient is garbage.
BOOST_DATA_TEST_CASE(experts_are_separate_mlps, kDtypes* data::xrange(6), dtype, index) {
  auto& counts = kCounts[index];
  auto rows = at::randn({total(counts), kHidden}).to(dtype).set_requires_grad(true);
  auto seed = at::randn(rows.sizes()).to(dtype);
  auto experts = random_experts(3, dtype);

  auto out = experts->compute(rows, counts);
  out.backward(seed);

  auto expected = plain_experts(*experts, rows, counts, seed);
  auto &gate_up = experts->parameters()[0].parameter.tensor(), &down = experts->parameters()[1].parameter.tensor();
  const bool fp32 = dtype == at::kFloat;
  BOOST_TEST(out.scalar_type() == dtype);
  BOOST_TEST(close(out, expected.out, fp32 ? 1e-5 : 3e-2));
  BOOST_TEST(close(rows.grad(), expected.grad_x, fp32 ? 1e-5 : 3e-2));
  BOOST_TEST(close(gate_up.grad(), expected.grad_gate_up, fp32 ? 1e-4 : 0.15));
  BOOST_TEST(close(down.grad(), expected.grad_down, fp32 ? 1e-4 : 0.15));
}

// Catches: an expert without rows that leaves garbage in a fresh sink, or wipes what an earlier microbatch added; a
// gradient that also goes to autograd.
BOOST_DATA_TEST_CASE(expert_gradients_go_into_sinks, kDtypes, dtype) {
  auto experts = random_experts(3, dtype);
  auto &gate_up = experts->parameters()[0].parameter, &down = experts->parameters()[1].parameter;
  for (auto* parameter : {&gate_up, &down}) {
    parameter->slot().sink.grad = at::full(parameter->slot().shape, std::nan(""), at::TensorOptions(dtype));
  }
  at::Tensor sum_gate_up, sum_down;
  for (auto& counts : {Numbers{4, 0, 6}, {0, 3, 5}, {0, 0, 0}}) {
    auto rows = at::randn({total(counts), kHidden}).to(dtype).set_requires_grad(true);
    auto seed = at::randn(rows.sizes()).to(dtype);
    experts->compute(rows, counts).backward(seed);
    auto expected = plain_experts(*experts, rows, counts, seed);
    sum_gate_up = sum_gate_up.defined() ? sum_gate_up + expected.grad_gate_up : expected.grad_gate_up;
    sum_down = sum_down.defined() ? sum_down + expected.grad_down : expected.grad_down;
    BOOST_TEST(close(gate_up.slot().sink.grad, sum_gate_up, dtype == at::kFloat ? 1e-5 : 0.05));
    BOOST_TEST(close(down.slot().sink.grad, sum_down, dtype == at::kFloat ? 1e-5 : 0.05));
    BOOST_TEST(!gate_up.tensor().grad().defined());
    BOOST_TEST(gate_up.slot().sink.filled);
  }
}

// Catches: a frozen matrix that gets a gradient, or whose freezing stops the other's.
BOOST_AUTO_TEST_CASE(a_frozen_matrix_gets_no_gradient) {
  auto experts = random_experts(2, at::kFloat);
  auto &gate_up = experts->parameters()[0].parameter, &down = experts->parameters()[1].parameter;
  gate_up.tensor().set_requires_grad(false);
  auto rows = at::randn({5, kHidden}), seed = at::randn({5, kHidden});
  experts->compute(rows, {2, 3}).backward(seed);
  BOOST_TEST(!gate_up.tensor().grad().defined());
  BOOST_TEST(close(down.tensor().grad(), plain_experts(*experts, rows, {2, 3}, seed).grad_down, 1e-5));
}

// Catches: ranks that would start from the same rows of the whole parameter, matrices that are not flat.
BOOST_AUTO_TEST_CASE(each_rank_has_its_experts_of_the_whole) {
  Experts experts(expert_options(8), {.size = 4, .rank = 3}, at::TensorOptions(at::kMeta));
  auto &gate_up = experts.parameters()[0], &down = experts.parameters()[1];
  BOOST_TEST(gate_up.name == "gate_up_proj");
  BOOST_TEST(down.name == "down_proj");
  BOOST_TEST((gate_up.parameter.slot().shape == Shape{2 * 2 * kWidth, kHidden}));
  BOOST_TEST((down.parameter.slot().shape == Shape{2 * kHidden, kWidth}));
  BOOST_TEST((gate_up.parameter.slot().part.whole_shape() == Shape{8, 2 * kWidth, kHidden}));
  BOOST_TEST((gate_up.parameter.slot().part.box() == Box{{6, 0, 0}, {2, 2 * kWidth, kHidden}}));
  BOOST_TEST((down.parameter.slot().part.whole_shape() == Shape{8, kHidden, kWidth}));
  BOOST_TEST((down.parameter.slot().part.box() == Box{{6, 0, 0}, {2, kHidden, kWidth}}));
  BOOST_CHECK_THROW(Experts(expert_options(8), {.size = 3}, at::TensorOptions(at::kMeta)), ArgumentError);
  BOOST_CHECK_THROW(experts(at::zeros({1, kHidden})), LogicError);
}

// Catches: a dense block that gets experts, layers counted by block, shared experts of one expert's width, names that a
// Hugging Face checkpoint does not have.
BOOST_AUTO_TEST_CASE(layers_are_made_from_the_first_sparse_block_on) {
  auto options = expert_options(4);
  options.n_shared_experts = 2;
  MoeLayers layers(options, 2, {});
  BOOST_TEST(!layers.make(0, at::TensorOptions(at::kMeta)));
  BOOST_TEST(!layers.make(1, at::TensorOptions(at::kMeta)));
  auto first = layers.make(2, at::TensorOptions(at::kMeta)), second = layers.make(3, at::TensorOptions(at::kMeta));
  BOOST_TEST(layers.list().size() == 2u);
  BOOST_TEST(layers.list()[1] == second.get());
  BOOST_TEST(layers.list()[1]->layer() == 3);
  BOOST_TEST(layers.list()[1]->router().layer() == 1);

  std::map<std::string, Shape> shapes;
  for (auto& [name, parameter] : named_parameters(*first)) shapes[name] = parameter.slot().shape;
  const std::map<std::string, Shape> expected{{"gate.weight", {4, kHidden}},
                                              {"experts.gate_up_proj", {4 * 2 * kWidth, kHidden}},
                                              {"experts.down_proj", {4 * kHidden, kWidth}},
                                              {"shared_experts.gate_proj.weight", {2 * kWidth, kHidden}},
                                              {"shared_experts.up_proj.weight", {2 * kWidth, kHidden}},
                                              {"shared_experts.down_proj.weight", {kHidden, 2 * kWidth}}};
  BOOST_TEST((shapes == expected));
}
