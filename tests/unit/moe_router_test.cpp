#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "base/error.h"
#include "moe/selection.h"
#include "moe_router_bench.h"
#include "moe_router_reference.h"

using namespace meshard;
namespace data = boost::unit_test::data;
namespace tt = boost::test_tools;

namespace {

bool close(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a, b, 1e-5, 1e-5);
}

reference::Rows rows_of(const at::Tensor& matrix) {
  auto flat = matrix.detach().contiguous();
  auto* p = flat.const_data_ptr<float>();
  reference::Rows rows;
  for (std::int64_t i = 0; i < flat.size(0); ++i) rows.emplace_back(p + i * flat.size(1), p + (i + 1) * flat.size(1));
  return rows;
}

at::Tensor logit(const std::vector<float>& p) {
  auto s = at::tensor(p);
  return (s / (1.0 - s)).log();
}

}  // namespace

// Catches: softmax over the chosen only, weights of the biased scores, a norm left out, the factor applied twice.
BOOST_AUTO_TEST_CASE(golden_sigmoid) {
  auto options = options_of(4, 2, 4);
  options.routed_scaling_factor = 2.5;
  Bench bench(options);
  bench.make_transparent();
  auto x = logit({.5, .25, .125, .75, .2, .6, .2, .1}).view({2, 4});
  auto routing = bench.route(x);
  BOOST_TEST(at::equal(routing.ids, at::tensor({3, 0, 1, 0}, at::kLong).view({2, 2})));
  BOOST_TEST(close(routing.weights, at::tensor({1.5f, 1.0f, 1.875f, .625f}).view({2, 2})));
  bench.router.bias().copy_(at::tensor({-1.0f, 1.0f, 0.0f, 0.0f}));
  routing = bench.route(x);
  BOOST_TEST(at::equal(routing.ids, at::tensor({1, 3, 1, 2}, at::kLong).view({2, 2})));
  BOOST_TEST(close(routing.weights, at::tensor({.625f, 1.875f, 1.875f, .625f}).view({2, 2})));
  BOOST_TEST(at::equal(bench.router.counts(), at::tensor({2, 3, 1, 2}, at::kLong)));
}

// Catches: sigmoid in its place, a softmax over the chosen where norm_topk_prob is off.
BOOST_DATA_TEST_CASE(golden_softmax, data::make({false, true}), norm) {
  auto options = options_of(4, 2, 4);
  options.scoring = Scoring::Softmax;
  options.expert_bias.enabled = false;
  options.norm_topk_prob = norm;
  Bench bench(options);
  bench.make_transparent();
  auto routing = bench.route(at::tensor({.25f, .125f, .5f, .125f}).log().view({1, 4}));
  BOOST_TEST(at::equal(routing.ids, at::tensor({2, 0}, at::kLong).view({1, 2})));
  auto expected = norm ? at::tensor({2.0f / 3, 1.0f / 3}) : at::tensor({.5f, .25f});
  BOOST_TEST(close(routing.weights, expected.view({1, 2})));
}

struct Variant {
  const char* name;
  void (*change)(MoeOptions&);
};
std::ostream& operator<<(std::ostream& out, const Variant& v) {
  return out << v.name;
}

auto kVariants = data::make(std::vector<Variant>{{"sigmoid", [](MoeOptions&) {}},
                                                 {"softmax", [](MoeOptions& o) { o.scoring = Scoring::Softmax; }},
                                                 {"without norm", [](MoeOptions& o) { o.norm_topk_prob = false; }},
                                                 {"softmax without norm",
                                                  [](MoeOptions& o) {
                                                    o.scoring = Scoring::Softmax;
                                                    o.norm_topk_prob = false;
                                                  }},
                                                 {"scaled groups", [](MoeOptions& o) {
                                                    o.n_group = 4;
                                                    o.topk_group = 2;
                                                    o.routed_scaling_factor = 1.75;
                                                  }}});

// Catches: any wrong formula of weights or of a gradient: of x, of the router's weight, through norm and scale.
BOOST_DATA_TEST_CASE(values_and_slopes_equal_the_loops, kVariants, variant) {
  auto options = options_of(8, 3, 5);
  variant.change(options);
  Bench bench(options);
  auto bias = at::randn({8}) * 0.3;
  bench.router.bias().copy_(bias);
  auto x = leaf(at::randn({6, 5})), c = at::randn({6, 3});
  auto routing = bench.route(x);

  auto xs = rows_of(x), ws = rows_of(bench.weight());
  auto biases = rows_of(bias.view({1, 8}))[0];
  auto cs = rows_of(c), got = rows_of(routing.weights);
  auto ids = list_of(routing.ids);
  auto ids_of = [&](std::size_t t) { return reference::Ids(ids.begin() + 3 * t, ids.begin() + 3 * t + 3); };
  auto slow = [&] {
    double sum = 0.0;
    auto z = reference::logits(xs, ws);
    for (std::size_t t = 0; t < 6; ++t) {
      auto w = reference::weights(z[t], ids_of(t), options);
      for (int k = 0; k < 3; ++k) sum += w[k] * cs[t][k];
    }
    return sum;
  };
  auto z = reference::logits(xs, ws);
  for (std::size_t t = 0; t < 6; ++t) {
    std::vector<float> q;
    auto s = reference::scores(z[t], options), w = reference::weights(z[t], ids_of(t), options);
    for (int i = 0; i < 8; ++i) q.push_back(static_cast<float>(s[i] + biases[i]));
    BOOST_TEST(reference::choose(q, options).ids == ids_of(t), tt::per_element());
    for (int k = 0; k < 3; ++k) BOOST_TEST(got[t][k] == w[k], tt::tolerance(1e-5));
  }
  (routing.weights * c).sum().backward();
  auto compare = [&](const at::Tensor& grad, reference::Rows& values) {
    auto mine = rows_of(grad);
    for (std::size_t i = 0; i < values.size(); ++i) {
      for (std::size_t j = 0; j < 5; ++j) {
        const double expected = reference::slope(values, i, j, slow);
        BOOST_TEST(std::abs(mine[i][j] - expected) < 1e-5 + 1e-4 * std::abs(expected), i << ", " << j);
      }
    }
  };
  compare(x.grad(), xs);
  compare(bench.weight().grad(), ws);
}

// Catches: a product in bf16, a gradient in the wrong dtype, a bias that is cast or rounded with the model.
BOOST_AUTO_TEST_CASE(a_bf16_model_routes_in_fp32) {
  Bench bench(options_of(8, 2, 32), at::kBFloat16);
  auto x = leaf(at::randn({40, 32}).to(at::kBFloat16));
  auto wide_x = leaf(x.to(at::kFloat)), wide_weight = leaf(bench.weight().to(at::kFloat));
  auto bias = bench.router.bias();
  BOOST_TEST((bias.scalar_type() == at::kFloat));
  bias.copy_(at::randn({8}) * 1e-3 + 1.0);
  auto routing = bench.route(x), again = bench.route(x);
  BOOST_TEST((routing.weights.scalar_type() == at::kFloat));
  auto scores = at::mm(wide_x, wide_weight.t()).sigmoid();
  auto expected = select_experts_aten(scores.detach(), bias, bench.options);
  BOOST_TEST(at::equal(routing.ids, expected.ids));
  BOOST_TEST(bench.router.tally().min_gap == expected.min_gap(), tt::tolerance(1e-3));
  auto picked = scores.gather(1, expected.ids);
  auto weights = picked / picked.sum(1, true);
  BOOST_TEST(close(routing.weights, weights));
  auto c = at::randn({40, 2});
  (routing.weights * c).sum().backward();
  (weights * c).sum().backward();
  BOOST_TEST((x.grad().scalar_type() == at::kBFloat16));
  BOOST_TEST((bench.weight().grad().scalar_type() == at::kBFloat16));
  BOOST_TEST(at::allclose(x.grad().to(at::kFloat), wide_x.grad(), 8e-3, 1e-5));
  BOOST_TEST(at::allclose(bench.weight().grad().to(at::kFloat), wide_weight.grad(), 8e-3, 1e-4));
}

// Catches: the bias in a weight, in a score of the gradient, or a selection that moves when all biases do.
BOOST_AUTO_TEST_CASE(an_equal_bias_changes_no_bit) {
  auto options = options_of(8, 2, 16);
  auto x = at::randn({64, 16});
  for (auto fault : {Fault::None, Fault::WeightsFromBiasedScores}) {
    options.fault = fault;
    Bench bench(options);
    auto before = bench.route(x);
    bench.router.bias().add_(0.25);
    auto after = bench.route(x);
    BOOST_TEST(at::equal(before.ids, after.ids));
    BOOST_TEST(at::equal(before.weights, after.weights) == (fault == Fault::None));
  }
}

// Catches: a bias that acts although it is off, and one that is missing from the checkpoint.
BOOST_DATA_TEST_CASE(a_bias_that_is_off_is_there, data::make({Scoring::Sigmoid, Scoring::Softmax}), scoring) {
  auto options = options_of(4, 1, 4);
  options.scoring = scoring;
  options.expert_bias.enabled = false;
  Bench bench(options);
  auto x = at::randn({30, 4});
  auto before = bench.route(x);
  bench.router.bias()[0].fill_(100.0);
  BOOST_TEST(at::equal(bench.route(x).ids, before.ids));
  BOOST_TEST(bench.router.buffers().front().persistent);
}

// Catches: buffers that go to meta with the weights or are persistent when they should not be; a wrong first value.
BOOST_AUTO_TEST_CASE(buffers_are_real_in_a_model_on_meta) {
  auto options = options_of(4, 1, 4);
  options.expert_bias.initial = 0.5;
  Bench bench(options, at::TensorOptions(at::kBFloat16).device(at::kMeta));
  BOOST_TEST(bench.weight().is_meta());
  BOOST_TEST(bench.slot().init.value == 0.02);
  auto& buffers = bench.router.buffers();
  BOOST_TEST(buffers[0].name == "e_score_correction_bias");
  BOOST_TEST(at::equal(bench.router.bias(), at::full({4}, 0.5f)));
  BOOST_TEST(at::equal(buffers[0].declared(), bench.router.bias()));
  BOOST_TEST(buffers[1].name == "tokens_per_expert");
  BOOST_TEST(!buffers[1].persistent);
  BOOST_TEST(buffers[1].tensor.is_same(bench.router.counts()));
  BOOST_TEST(at::equal(bench.router.counts(), at::zeros({4}, at::kLong)));
  BOOST_TEST(bench.router.layer() == 3);
}

// Catches: a bias in bf16 (the fault) that breaks the selection instead of only rounding it.
BOOST_AUTO_TEST_CASE(a_bias_replaced_by_bf16_is_used) {
  Bench bench(options_of(3, 1, 3));
  bench.make_transparent();
  bench.router.buffers().front().tensor = at::tensor({0.0f, 0.0f, 2.0f}).to(at::kBFloat16);
  BOOST_TEST(at::equal(bench.route(at::zeros({2, 3})).ids, at::full({2, 1}, 2, at::kLong)));
}

// Catches: the first write added to garbage, the second one lost, a frozen router with a gradient.
BOOST_DATA_TEST_CASE(weight_gradients_go_to_the_sink, data::make({at::kFloat, at::kBFloat16}), dtype) {
  Bench bench(options_of(4, 2, 8), dtype);
  auto x = at::randn({16, 8}).to(dtype), c = at::randn({16, 2});
  auto run = [&] { (bench.route(x).weights * c).sum().backward(); };
  run();
  auto expected = bench.weight().grad().clone();
  bench.weight().mutable_grad() = at::Tensor();
  bench.slot().sink = {at::full({4, 8}, 1e9, dtype), false};
  run();
  BOOST_TEST(at::equal(bench.slot().sink.grad, expected));
  run();
  BOOST_TEST(at::equal(bench.slot().sink.grad, expected * 2));
  BOOST_TEST(!bench.weight().grad().defined());
  BOOST_TEST(!bench.router.frozen());
  bench.slot().requires_grad = false;
  bench.weight().set_requires_grad(false);
  BOOST_TEST(bench.router.frozen());
  BOOST_TEST(!bench.route(x).weights.requires_grad());
}

// Catches: a microbatch without tokens that fails, or leaves the weight without a gradient.
BOOST_AUTO_TEST_CASE(no_tokens) {
  auto options = options_of(4, 2, 8);
  options.aux_loss = AuxLoss::Switch;
  options.aux_loss_coeff = options.z_loss_coeff = 0.1;
  Bench bench(options);
  auto x = leaf(at::zeros({0, 8}));
  auto routing = bench.route(x, 4);
  BOOST_TEST(routing.ids.sizes() == at::IntArrayRef({0, 2}));
  routing.weights.sum().backward();
  BOOST_TEST(at::equal(bench.weight().grad(), at::zeros({4, 8})));
  BOOST_TEST(at::equal(bench.router.counts(), at::zeros({4}, at::kLong)));
}

// Catches: sizes that would read past a row.
BOOST_AUTO_TEST_CASE(impossible_sizes_are_errors) {
  auto refuses = [](std::int64_t experts, std::int64_t chosen, std::int64_t groups, std::int64_t kept) {
    auto options = options_of(experts, chosen, 4);
    options.n_group = groups;
    options.topk_group = kept;
    BOOST_CHECK_THROW(Bench bench(options), ArgumentError);
  };
  refuses(4, 5, 1, 1);
  refuses(4, 0, 1, 1);
  refuses(8, 2, 3, 1);
  refuses(4, 1, 4, 1);
  refuses(8, 2, 2, 3);
  refuses(8, 3, 4, 1);
  refuses(8, 3, 0, 1);
  Bench bench(options_of(4, 2, 8));
  BOOST_CHECK_THROW(bench.route(at::zeros({6, 8}), 4), ShapeError);
  BOOST_CHECK_THROW(bench.route(at::zeros({6, 7}), 3), ShapeError);
}
