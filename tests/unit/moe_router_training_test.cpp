#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "moe/balance_losses.h"
#include "moe/routing_file.h"
#include "moe/selection.h"
#include "moe_router_bench.h"
#include "nn/recompute.h"

using namespace meshard;
namespace data = boost::unit_test::data;
namespace tt = boost::test_tools;

namespace {

std::int64_t total(const at::Tensor& counts) {
  return counts.sum().item<std::int64_t>();
}

double number(const at::Tensor& scalar) {
  return scalar.item<double>();
}

at::Tensor loads_of(const at::Tensor& ids, std::int64_t experts) {
  return at::bincount(ids.reshape(-1), {}, experts);
}

/// 10 tokens whose best expert is 0, the surer the later; the second best is 1 + t % 3.
at::Tensor crowd() {
  auto logits = at::zeros({10, 4});
  for (int t = 0; t < 10; ++t) {
    logits[t][0].fill_(2.0 + 0.25 * t);
    logits[t][1 + t % 3].fill_(1.0);
  }
  return logits;
}

MoeOptions crowded(double capacity_factor) {
  auto options = options_of(4, 2, 4);
  options.capacity_factor = capacity_factor;
  return options;
}

MoeOptions with_losses(AuxLoss aux_loss, Scoring scoring) {
  auto options = options_of(6, 2, 8);
  options.scoring = scoring;
  options.expert_bias.enabled = scoring == Scoring::Sigmoid;
  options.aux_loss = aux_loss;
  options.aux_loss_coeff = aux_loss == AuxLoss::None ? 0.0 : 0.5;
  options.z_loss_coeff = 0.125;
  return options;
}

class FixedTap : public RoutingTap {
 public:
  explicit FixedTap(at::Tensor answer) : answer_(std::move(answer)) {}
  at::Tensor pass(int layer, at::Tensor ids) override {
    layers.push_back(layer);
    seen.push_back(ids.clone());
    return answer_;
  }
  std::vector<int> layers;
  std::vector<at::Tensor> seen;

 private:
  at::Tensor answer_;
};

}  // namespace

// Catches: evaluation counted, counts that start anew with each microbatch, a clear() that replaces the buffer.
BOOST_AUTO_TEST_CASE(counts_what_is_trained) {
  for (auto fault : {Fault::None, Fault::CountInEval}) {
    auto options = options_of(4, 2, 8);
    options.fault = fault;
    Bench bench(options);
    auto x = at::randn({10, 8});
    auto counts = bench.router.counts();
    auto first = loads_of(bench.route(x).ids, 4);
    BOOST_TEST(at::equal(counts, first));
    auto second = loads_of(bench.route(x * -1.0).ids, 4);
    BOOST_TEST(at::equal(counts, first + second));
    const double gap = bench.router.tally().min_gap;
    BOOST_TEST(gap > 0.0);
    bench.pass.training = false;
    bench.route(at::zeros({10, 8}));
    BOOST_TEST(total(counts) == (fault == Fault::None ? 40 : 60));
    BOOST_TEST(bench.router.tally().min_gap == gap);
    bench.router.clear();
    BOOST_TEST(total(counts) == 0);
    BOOST_TEST(std::isinf(bench.router.tally().min_gap));
  }
}

// Catches: a fault that does not stick at 256 as a bf16 counter does, or a clean counter that does.
BOOST_AUTO_TEST_CASE(a_bf16_counter_sticks_at_256) {
  for (auto fault : {Fault::None, Fault::CountsInBf16}) {
    auto options = options_of(4, 1, 4);
    options.fault = fault;
    Bench bench(options);
    bench.make_transparent();
    bench.router.counts().copy_(at::tensor({0, 255, 512, 0}, at::kLong));
    bench.route(at::tensor({1.0f, 0.0f, 0.0f, 0.0f}).repeat({257, 1}));
    bench.route(at::tensor({0.0f, 0.0f, 1.0f, 0.0f}).repeat({3, 1}));
    bench.route(at::tensor({0.0f, 1.0f, 0.0f, 0.0f}).repeat({2, 1}));
    const bool clean = fault == Fault::None;
    auto expected = clean ? at::tensor({257, 257, 515, 0}, at::kLong) : at::tensor({256, 256, 512, 0}, at::kLong);
    BOOST_TEST(at::equal(bench.router.counts(), expected));
  }
}

// Catches: a choice made anew in the second run (after the bias has moved), counted or tallied twice; gradients that
// differ by a bit from those without recomputation.
BOOST_AUTO_TEST_CASE(recomputation_repeats_the_choice_and_does_not_count) {
  for (auto fault : {Fault::None, Fault::DoubleCountRecompute}) {
    auto options = with_losses(AuxLoss::Switch, Scoring::Sigmoid);
    options.fault = fault;
    options.capacity_factor = 1.0;
    Bench bench(options);
    bench.pass.loss_scale = 0.01;
    auto plain = leaf(at::randn({32, 8})), again = leaf(plain), c = at::randn({32, 2});
    std::vector<at::Tensor> ids;
    auto body = [&](const at::Tensor& x) {
      auto routing = bench.route(x, 4);
      ids.push_back(routing.ids);
      return routing.weights;
    };
    (body(plain) * c).sum().backward();
    auto grad = bench.weight().grad().clone();
    auto tally = bench.router.tally();
    auto counts = bench.router.counts().clone();
    BOOST_TEST(tally.dropped > 0);
    bench.weight().mutable_grad() = at::Tensor();
    bench.router.clear();

    auto weights = recompute(again, body);
    bench.router.bias().copy_(at::tensor({9.0f, 0.0f, 0.0f, -9.0f, 3.0f, 4.0f}));
    (weights * c).sum().backward();
    BOOST_TEST(ids.size() == 3u);
    BOOST_TEST(at::equal(ids[1], ids[0]));
    BOOST_TEST(at::equal(ids[2], ids[0]));
    BOOST_TEST(at::equal(bench.weight().grad(), grad));
    BOOST_TEST(at::equal(again.grad(), plain.grad()));
    BOOST_TEST(at::equal(bench.router.counts(), counts * (fault == Fault::None ? 1 : 2)));
    auto second = bench.router.tally();
    BOOST_TEST(second.dropped == tally.dropped);
    BOOST_TEST(second.aux_loss == tally.aux_loss);
    BOOST_TEST(second.z_loss == tally.z_loss);
    BOOST_TEST(second.min_gap == tally.min_gap);
  }
}

// Catches: the wrong pairs dropped, dropped pairs counted, the weights of those that stay made up for it.
BOOST_AUTO_TEST_CASE(capacity_drops_the_least_sure) {
  Bench bench(crowded(0.8));  // 0.8 * 10 * 2 / 4: four pairs an expert
  bench.make_transparent();
  Bench dropless(options_of(4, 2, 4));
  dropless.make_transparent();
  auto routing = bench.route(crowd()), whole = dropless.route(crowd());
  auto ids = list_of(routing.ids);
  for (int t = 0; t < 10; ++t) {
    BOOST_TEST(ids[2 * t] == (t < 6 ? kDroppedPair : 0), "token " << t);
    BOOST_TEST(ids[2 * t + 1] == 1 + t % 3, "token " << t);
  }
  BOOST_TEST(at::equal(routing.weights, whole.weights));
  BOOST_TEST(at::equal(bench.router.counts(), at::tensor({4, 4, 3, 3}, at::kLong)));
  BOOST_TEST(at::equal(dropless.router.counts(), at::tensor({10, 4, 3, 3}, at::kLong)));
  BOOST_TEST(bench.router.tally().dropped == 6);
  bench.pass.training = false;
  BOOST_TEST(at::equal(bench.route(crowd()).ids, routing.ids));
  BOOST_TEST(bench.router.tally().dropped == 6);
}

// Catches: a gradient from a pair that no expert saw, other than through the norm that it is part of.
BOOST_DATA_TEST_CASE(dropped_pairs_and_gradients, data::make({false, true}), norm) {
  auto options = crowded(0.8);
  options.norm_topk_prob = norm;
  Bench bench(options);
  bench.make_transparent();
  auto x = leaf(crowd()), z = leaf(crowd()), c = at::randn({10, 2});
  auto routing = bench.route(x);
  auto kept = at::where(routing.ids.eq(kDroppedPair), at::zeros({10, 2}), c);
  (routing.weights * kept).sum().backward();
  auto pairs = z.sigmoid().gather(1, bench.route(z).ids.clamp_min(0));  // expert 0 is the dropped one
  ((norm ? pairs / pairs.sum(1, true) : pairs) * kept).sum().backward();
  BOOST_TEST(at::allclose(x.grad(), z.grad(), 1e-5, 1e-6));
  for (int t = 0; !norm && t < 6; ++t) BOOST_TEST(number(x.grad()[t][0]) == 0.0);
}

// Catches: a factor of the losses missing or twice (coefficient, tokens, scale), values added up in evaluation,
// `switch` counts without the dropped, a loss that reaches the report but no gradient.
BOOST_DATA_TEST_CASE(losses_are_scaled_as_the_main_loss,
                     data::make({AuxLoss::None, AuxLoss::Switch, AuxLoss::Sequence}) *
                         data::make({Scoring::Sigmoid, Scoring::Softmax}) * data::make({0.0, 0.75}),
                     aux_loss, scoring, capacity_factor) {
  auto options = with_losses(aux_loss, scoring);
  if (capacity_factor > 0.0) options.capacity_factor = capacity_factor;
  Bench bench(options);
  bench.pass.loss_scale = 0.25;
  bench.router.bias().copy_(at::randn({6}) * 0.2);
  auto x = leaf(at::randn({12, 8})), weight = leaf(bench.weight()), y = leaf(x), c = at::randn({12, 2});
  auto routing = bench.route(x, 4);
  (routing.weights * c).sum().backward();

  auto logits = at::mm(y, weight.t());
  auto scores = scoring == Scoring::Sigmoid ? logits.sigmoid() : logits.softmax(1);
  auto bias = options.expert_bias.enabled ? bench.router.bias() : at::Tensor();
  auto chosen = select_experts_aten(scores.detach(), bias, options).ids;
  auto picked = scores.gather(1, chosen);
  auto aux = at::zeros({});
  if (aux_loss == AuxLoss::Switch) aux = 0.25 * 0.5 * 12 * switch_loss(logits, loads_of(chosen, 6), options);
  if (aux_loss == AuxLoss::Sequence) aux = 0.25 * 0.5 * 4 * sequence_loss(logits, 4, options);
  auto z = 0.25 * 0.125 * z_loss(logits);
  ((picked / picked.sum(1, true) * c).sum() + aux + z).backward();

  BOOST_TEST(at::allclose(x.grad(), y.grad(), 1e-4, 1e-5));
  BOOST_TEST(at::allclose(bench.weight().grad(), weight.grad(), 1e-4, 1e-5));
  BOOST_TEST(bench.router.tally().aux_loss == number(aux), tt::tolerance(1e-5));
  BOOST_TEST(bench.router.tally().z_loss == number(z), tt::tolerance(1e-5));
  bench.pass.training = false;
  const at::NoGradGuard no_grad;
  bench.route(x, 4);
  BOOST_TEST(bench.router.tally().z_loss == number(z), tt::tolerance(1e-5));
}

// Catches: losses over ranks or microbatches that are not the mean over the step. `switch` depends on the partition.
BOOST_DATA_TEST_CASE(two_microbatches_add_up, data::make({AuxLoss::Sequence, AuxLoss::Switch}), aux_loss) {
  Bench bench(with_losses(aux_loss, Scoring::Sigmoid));
  bench.pass.loss_scale = 1.0 / 24;
  auto x = at::randn({24, 8});
  bench.route(x, 4).weights.sum().backward();
  auto whole = bench.router.tally();
  auto grad = bench.weight().grad().clone();
  bench.weight().mutable_grad() = at::Tensor();
  bench.router.clear();
  for (int half = 0; half < 2; ++half) bench.route(x.narrow(0, 12 * half, 12), 4).weights.sum().backward();
  auto halves = bench.router.tally();
  BOOST_TEST(halves.z_loss == whole.z_loss, tt::tolerance(1e-5));
  const double apart = std::abs(halves.aux_loss - whole.aux_loss) / whole.aux_loss;
  BOOST_TEST((apart < 1e-5) == (aux_loss == AuxLoss::Sequence), apart);
  BOOST_TEST(at::allclose(bench.weight().grad(), grad, 1e-4, 1e-5) == (aux_loss == AuxLoss::Sequence));
}

// Catches: a tap that sees the choice after drops, in evaluation or twice; its answer not used for weights and counts.
BOOST_AUTO_TEST_CASE(the_tap_decides) {
  auto options = options_of(4, 2, 4);
  options.capacity_factor = 0.5;
  Bench bench(options);
  bench.make_transparent();
  auto x = leaf(at::tensor({9.0f, 8.0f, 0.0f, 1.0f}).repeat({4, 1}));
  FixedTap tap(at::tensor({3, 2, 2, 0, 0, 1, 1, 3}, at::kLong).view({4, 2}));
  bench.pass.tap = &tap;
  std::vector<Routing> routings;
  recompute(x, [&](const at::Tensor& input) { return routings.emplace_back(bench.route(input, 2)).weights; })
      .sum()
      .backward();
  BOOST_TEST(tap.layers == std::vector<int>{3}, tt::per_element());
  BOOST_TEST(at::equal(tap.seen.at(0), at::tensor({0, 1}, at::kLong).repeat({4, 1})));
  const std::vector<std::int64_t> within{3, 2, -1, 0, -1, -1, 1, -1};
  BOOST_TEST(routings.size() == 2u);
  for (auto& routing : routings) {
    auto scores = x.detach().sigmoid();
    const double sum = number(scores[0][3]) + number(scores[0][2]);
    BOOST_TEST(number(routing.weights[0][0]) == number(scores[0][3]) / sum, tt::tolerance(1e-5));
    BOOST_TEST(list_of(routing.ids) == within, tt::per_element());
  }
  BOOST_TEST(at::equal(bench.router.counts(), at::full({4}, 1, at::kLong)));
  bench.pass.training = false;
  bench.route(x, 2);
  BOOST_TEST(tap.seen.size() == 1u);
}
