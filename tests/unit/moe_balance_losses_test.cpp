#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "moe/balance_losses.h"
#include "moe_router_reference.h"

using namespace meshard;
namespace data = boost::unit_test::data;
namespace tt = boost::test_tools;

namespace {

auto kScorings = data::make({0, 1});  // sigmoid, softmax

MoeOptions options_of(int scoring, std::int64_t experts, std::int64_t chosen) {
  MoeOptions options;
  options.scoring = scoring == 0 ? MoeOptions::Scoring::Sigmoid : MoeOptions::Scoring::Softmax;
  options.n_routed_experts = experts;
  options.num_experts_per_tok = chosen;
  return options;
}

reference::Rows rows_of(const at::Tensor& matrix) {
  auto flat = matrix.detach().contiguous();
  auto* p = flat.const_data_ptr<float>();
  reference::Rows rows;
  for (std::int64_t i = 0; i < flat.size(0); ++i) rows.emplace_back(p + i * flat.size(1), p + (i + 1) * flat.size(1));
  return rows;
}

at::Tensor leaf(const at::Tensor& values) {
  return values.clone().set_requires_grad(true);
}

double number(const at::Tensor& scalar) {
  return scalar.item<double>();
}

/// Value and every gradient of loss(logits) against slow(rows), a function of the same logits in double.
template <class Loss, class Slow>
void check_against(const at::Tensor& logits, Loss loss, Slow slow) {
  auto rows = rows_of(logits);
  auto z = leaf(logits);
  auto value = loss(z);
  BOOST_TEST(number(value) == slow(rows), tt::tolerance(1e-5));
  (value * 3.0).backward();
  double worst = 0.0;
  for (std::int64_t t = 0; t < logits.size(0); ++t) {
    for (std::int64_t i = 0; i < logits.size(1); ++i) {
      const double expected = 3.0 * reference::slope(rows, t, i, [&] { return slow(rows); });
      worst = std::max(worst, std::abs(number(z.grad()[t][i]) - expected));
    }
  }
  BOOST_TEST(worst < 1e-5);
}

}  // namespace

// Catches: counts and probabilities exchanged, K or experts missing: half of the tokens' mass on an expert with all
// pairs is experts * 1 * 1/2.
BOOST_DATA_TEST_CASE(goldens, kScorings, scoring) {
  auto options = options_of(scoring, 2, 1);
  auto even = at::full({4, 2}, 0.0f);
  BOOST_TEST(number(switch_loss(even, at::tensor({4, 0}, at::kLong), options)) == 1.0);
  BOOST_TEST(number(switch_loss(even, at::tensor({2, 2}, at::kLong), options)) == 1.0);
  // Ties go to expert 0, in each of the two sequences.
  BOOST_TEST(number(sequence_loss(even, 2, options)) == 2.0);
  BOOST_TEST(number(z_loss(even)) == 4.0 * std::log(2.0) * std::log(2.0), tt::tolerance(1e-6));
  BOOST_TEST(number(z_loss(even + 3.0)) == 4.0 * std::pow(std::log(2.0) + 3.0, 2), tt::tolerance(1e-6));
  auto one_sided = at::tensor({20.0f, -80.0f, 20.0f, -80.0f}).view({2, 2});
  BOOST_TEST(number(switch_loss(one_sided, at::tensor({2, 0}, at::kLong), options)) == 2.0);
  BOOST_TEST(number(switch_loss(one_sided, at::tensor({0, 2}, at::kLong), options)) < 1e-20);
}

// Catches: f or P of the wrong axis, a sigmoid that is not normalised, a gradient through the normalisation left out.
BOOST_DATA_TEST_CASE(switch_equals_the_loops, kScorings, scoring) {
  auto options = options_of(scoring, 6, 2);
  auto counts = at::bincount(at::randint(0, 6, {14}, at::kLong), {}, 6);
  auto* p = counts.const_data_ptr<std::int64_t>();
  check_against(
      at::randn({7, 6}) * 2, [&](const at::Tensor& z) { return switch_loss(z, counts, options); },
      [&](const reference::Rows& z) {
        return reference::switch_loss(z, {p, p + 6}, options);
      });
}

// Catches: sequences mixed, the choice from biased or grouped scores, a mean over sequences instead of their sum.
BOOST_DATA_TEST_CASE(sequence_equals_the_loops, kScorings, scoring) {
  auto options = options_of(scoring, 6, 2);
  if (scoring == 0) options.n_group = 3;
  check_against(
      at::randn({15, 6}) * 2, [&](const at::Tensor& z) { return sequence_loss(z, 5, options); },
      [&](const reference::Rows& z) { return reference::sequence_loss(z, 5, options); });
}

// Catches: logsumexp not squared, a mean, a gradient without the factor 2.
BOOST_AUTO_TEST_CASE(z_equals_the_loops) {
  check_against(at::randn({9, 6}), z_loss, reference::z_loss);
}

// Catches: normalising by what the rank holds: two halves of a batch must sum to the whole. Of `switch` they do not.
BOOST_DATA_TEST_CASE(halves_sum_to_the_whole, kScorings, scoring) {
  auto options = options_of(scoring, 5, 2);
  auto whole = at::randn({24, 5}), first = whole.narrow(0, 0, 12), second = whole.narrow(0, 12, 12);
  auto sums = [&](auto loss) { return number(loss(first)) + number(loss(second)) - number(loss(whole)); };
  BOOST_TEST(std::abs(sums([&](const at::Tensor& z) { return sequence_loss(z, 4, options); })) < 1e-5);
  BOOST_TEST(std::abs(sums([](const at::Tensor& z) { return z_loss(z); })) < 1e-4);
}

// Catches: 0/0 where a microbatch has no tokens.
BOOST_DATA_TEST_CASE(no_tokens_no_loss, kScorings, scoring) {
  auto options = options_of(scoring, 4, 2);
  auto none = at::randn({0, 4});
  BOOST_TEST(number(switch_loss(none, at::full({4}, 0, at::kLong), options)) == 0.0);
  BOOST_TEST(number(sequence_loss(none, 3, options)) == 0.0);
  BOOST_TEST(number(z_loss(none)) == 0.0);
}

// Catches: a changed carrier, its gradient scaled or lost, a loss whose gradient follows the carrier's instead of 1.
BOOST_AUTO_TEST_CASE(an_attached_loss_gets_gradient_one) {
  auto carrier = leaf(at::randn({3, 2})), z = leaf(at::randn({4}));
  auto carried = attach_loss(carrier, (z * z).sum());
  BOOST_TEST(at::equal(carried, carrier));
  auto grad = at::randn({3, 2});
  (carried * 1.0).backward(grad);
  BOOST_TEST(at::equal(carrier.grad(), grad));
  BOOST_TEST(at::equal(z.grad(), z * 2));

  auto fixed = at::randn({3, 2}), y = leaf(at::randn({4}));
  attach_loss(fixed, y.sum()).sum().backward();
  BOOST_TEST(at::equal(y.grad(), at::full({4}, 1.0f)));
}
