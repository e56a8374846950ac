#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <random>

#include "moe/selection.h"
#include "moe_router_reference.h"

using namespace meshard;
namespace data = boost::unit_test::data;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");
constexpr double kNoGap = std::numeric_limits<double>::infinity();

struct Way {
  const char* name;
  Selection (*select)(const at::Tensor&, const at::Tensor&, const MoeOptions&);
};
std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << way.name;
}
auto kWays = data::make(std::vector<Way>{{"fused", select_experts_cpu}, {"aten", select_experts_aten}});

MoeOptions options_of(std::int64_t experts, std::int64_t chosen, std::int64_t groups = 1, std::int64_t kept = 1) {
  MoeOptions options;
  options.n_routed_experts = experts;
  options.num_experts_per_tok = chosen;
  options.n_group = groups;
  options.topk_group = kept;
  return options;
}

at::Tensor matrix(std::int64_t columns, const std::vector<float>& values) {
  return at::tensor(values).view({-1, columns});
}

at::Tensor ids_of(std::int64_t columns, const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong).view({-1, columns});
}

std::vector<std::int64_t> list_of(const at::Tensor& ids) {
  auto* p = ids.const_data_ptr<std::int64_t>();
  return {p, p + ids.numel()};
}

struct Golden {
  const char* name;
  MoeOptions options;
  std::vector<float> scores, bias;
  std::vector<std::int64_t> ids;
  double gap;
};
std::ostream& operator<<(std::ostream& out, const Golden& g) {
  return out << g.name;
}

auto kGoldens = data::make(std::vector<Golden>{
    {"largest first", options_of(2, 1), {1, 2, 4, 3}, {}, {1, 0}, 1},
    {"two of four", options_of(4, 2), {.25, 1, .5, .75, 4, 3, 1, 2}, {}, {1, 3, 0, 1}, .25},
    {"the bias moves the choice", options_of(4, 2), {.25, .5, .75, 1}, {1, 0, .5, -1}, {0, 2}, .75},
    {"ties by lower index", options_of(5, 3), {1, 2, 1, 2, 1}, {}, {1, 3, 0}, 0},
    {"all equal", options_of(4, 2), {.5, .5, .5, .5}, {}, {0, 1}, 0},
    {"-0 is 0", options_of(4, 2), {-1, -0.0f, 0.0f, -0.0f}, {}, {1, 2}, 0},
    {"-0 by the bias", options_of(3, 1), {0.0f, -0.0f, -0.0f}, {-0.0f, -0.0f, 0.0f}, {0}, 0},
    {"NaN first, no gap", options_of(4, 2), {1, kNan, kInf, -kNan}, {}, {1, 3}, kNoGap},
    {"NaN elsewhere, the gap of others", options_of(2, 1), {kNan, 1, 3, 5}, {}, {0, 1}, 2},
    {"infinities", options_of(4, 3), {-kInf, kInf, -1, kInf}, {}, {1, 3, 2}, kNoGap},
    {"equal infinities", options_of(3, 1), {kInf, 1, kInf}, {}, {0}, 0},
    {"every expert", options_of(3, 3), {1, 3, 2}, {}, {1, 2, 0}, kNoGap},
    {"groups: by the sum of two", options_of(6, 2, 2, 1), {9, 0, 0, 5, 5, 4}, {}, {3, 4}, 1},
    {"groups: the rest is -inf, not 0", options_of(4, 2, 2, 1), {-1, -2, -3, -4}, {}, {0, 1}, kNoGap},
    {"groups: a third of negatives", options_of(6, 2, 2, 1), {-9, -9, -9, -3, -5, -2}, {}, {5, 3}, 2},
    {"groups: ties by lower index", options_of(6, 2, 3, 2), {1, 2, 2, 1, 0, 3}, {}, {1, 2}, 1},
    {"groups: biased sums", options_of(4, 1, 2, 1), {1, 1, 0, 0}, {0, 0, 1, 2}, {3}, 1},
    {"groups: NaN wins its group", options_of(4, 1, 2, 1), {9, 9, kNan, 0}, {}, {2}, kNoGap},
    {"groups: -inf in a kept group", options_of(4, 2, 2, 1), {-5, -9, kInf, -kInf}, {}, {2, 3}, kNoGap},
    {"eight experts, four groups", options_of(8, 3, 4, 2), {1, 6, 2, 3, 7, 1, 4, 4}, {}, {4, 6, 7}, 3},
});

}  // namespace

// Catches: unstable ties, NaN last, groups masked with 0, group scores of unbiased or of single scores, a wrong gap.
BOOST_DATA_TEST_CASE(goldens, kWays* kGoldens, way, golden) {
  auto bias = golden.bias.empty() ? at::Tensor() : at::tensor(golden.bias);
  auto selection = way.select(matrix(golden.options.n_routed_experts, golden.scores), bias, golden.options);
  auto ids = list_of(selection.ids);
  BOOST_TEST(ids == golden.ids, boost::test_tools::per_element());
  BOOST_TEST(selection.min_gap() == golden.gap);
}

namespace {

MoeOptions random_options(std::mt19937& random) {
  auto up_to = [&](int n) { return static_cast<std::int64_t>(random() % n) + 1; };
  auto groups = random() % 2 ? 1 : up_to(5), size = up_to(7) + (groups > 1 ? 1 : 0);
  auto kept = up_to(static_cast<int>(groups));
  return options_of(groups * size, up_to(static_cast<int>(kept * size)), groups, kept);
}

// From coarse steps, so that ties are common; half of the time negative throughout; some NaN and infinities.
std::vector<float> random_scores(std::mt19937& random, std::int64_t count, bool special) {
  std::vector<float> values(count);
  const float shift = random() % 2 ? 9.0f : 0.0f;
  auto steps = random() % 4 ? 5 : 100003;
  for (float& x : values) {
    x = static_cast<float>(random() % steps) * 8.0f / static_cast<float>(steps) - shift;
    if (x == 0.0f && random() % 2) x = -0.0f;
    if (special && random() % 16 == 0) x = std::array{kNan, -kNan, kInf}[random() % 3];
  }
  return values;
}

}  // namespace

// Catches: anything the goldens do not: 1,000 settings, both ways, ids and gap exactly the slow loops'.
BOOST_AUTO_TEST_CASE(random_settings_equal_the_loops) {
  std::mt19937 random(5);
  int wrong = 0, with_groups = 0, with_ties = 0;
  for (int round = 0; round < 1000; ++round) {
    auto options = random_options(random);
    auto experts = options.n_routed_experts, tokens = static_cast<std::int64_t>(random() % 9);
    auto scores = random_scores(random, tokens * experts, round % 4 == 0);
    auto bias = round % 3 == 0 ? std::vector<float>() : random_scores(random, experts, false);
    std::vector<std::int64_t> expected;
    double gap = kNoGap;
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::vector<float> q(scores.begin() + t * experts, scores.begin() + (t + 1) * experts);
      for (std::size_t i = 0; i < bias.size(); ++i) q[i] += bias[i];
      auto choice = reference::choose(q, options);
      expected.insert(expected.end(), choice.ids.begin(), choice.ids.end());
      gap = std::min(gap, choice.gap);
    }
    auto bias_tensor = bias.empty() ? at::Tensor() : at::tensor(bias);
    for (auto way : {select_experts_cpu, select_experts_aten}) {
      auto selection = way(at::tensor(scores).view({tokens, experts}), bias_tensor, options);
      wrong += list_of(selection.ids) != expected || selection.min_gap() != gap || !selection.ids.is_contiguous();
    }
    with_groups += options.n_group > 1;
    with_ties += gap == 0.0;
  }
  BOOST_TEST(wrong == 0);
  BOOST_TEST(with_groups > 300);
  BOOST_TEST(with_ties > 200);
}

// Catches: a choice or gap that depends on the threads, or on the layout of the scores in memory.
BOOST_AUTO_TEST_CASE(threads_and_strides_do_not_matter) {
  auto scores = at::randn({5000, 64}), bias = at::randn({64});
  auto options = options_of(64, 6, 8, 3);
  at::set_num_threads(1);
  auto one = select_experts_cpu(scores, bias, options);
  at::set_num_threads(2);
  auto two = select_experts_cpu(scores.t().contiguous().t(), bias, options);
  auto aten = select_experts_aten(scores.t().contiguous().t(), bias, options);
  BOOST_TEST(at::equal(one.ids, two.ids));
  BOOST_TEST(at::equal(one.ids, aten.ids));
  BOOST_TEST(one.min_gap() == two.min_gap());
  BOOST_TEST(one.min_gap() == aten.min_gap());
}

// Catches: rounding down, a share of the tokens instead of the pairs, no room at all, 1.1 * 10 taken for 12.
BOOST_AUTO_TEST_CASE(capacity_goldens) {
  auto options = options_of(8, 2);
  options.capacity_factor = 1.0;
  BOOST_TEST(expert_capacity(16, options) == 4);
  BOOST_TEST(expert_capacity(17, options) == 5);
  BOOST_TEST(expert_capacity(1, options) == 1);
  BOOST_TEST(expert_capacity(0, options) == 1);
  options.capacity_factor = 1.25;
  BOOST_TEST(expert_capacity(16, options) == 5);
  options.capacity_factor = 1.1;
  BOOST_TEST(expert_capacity(40, options) == 11);
}

// Catches: the largest instead of the least weight dropped, ties to the earlier token, pairs of another expert touched.
BOOST_AUTO_TEST_CASE(drops_the_least_weights) {
  auto ids = ids_of(2, {0, 1, 0, 2, 1, 0, 0, 2});
  auto weights = matrix(2, {.5, .5, .25, .75, .5, .5, .5, .125});
  const std::vector<std::int64_t> expected{0, 1, -1, 2, 1, 0, -1, 2};
  BOOST_TEST(drop_over_capacity(ids, weights, 3, 2) == 2);
  BOOST_TEST(list_of(ids) == expected, boost::test_tools::per_element());
  BOOST_TEST(drop_over_capacity(ids, weights, 3, 2) == 0);
  const std::vector<std::int64_t> one_each{0, 1, -1, 2, -1, -1, -1, -1};
  BOOST_TEST(drop_over_capacity(ids, weights, 3, 1) == 3);
  BOOST_TEST(list_of(ids) == one_each, boost::test_tools::per_element());
}

// Catches: a pair dropped while a lesser one of the same expert stays, an expert left with fewer than its capacity.
BOOST_AUTO_TEST_CASE(random_drops_equal_the_loops) {
  std::mt19937 random(9);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t experts = random() % 6 + 1, pairs = random() % 60, capacity = random() % 8 + 1;
    std::vector<std::int64_t> ids(pairs), expected(pairs);
    std::vector<float> weights(pairs);
    for (std::int64_t i = 0; i < pairs; ++i) {
      ids[i] = static_cast<std::int64_t>(random() % experts);
      weights[i] = static_cast<float>(random() % 7);
    }
    for (std::int64_t i = 0; i < pairs; ++i) {
      std::int64_t before = 0;
      for (std::int64_t j = 0; j < pairs; ++j) {
        before += ids[j] == ids[i] && (weights[j] > weights[i] || (weights[j] == weights[i] && j < i));
      }
      expected[i] = before < capacity ? ids[i] : kDroppedPair;
    }
    auto tensor = ids_of(1, ids);
    auto dropped = drop_over_capacity(tensor, matrix(1, weights), experts, capacity);
    BOOST_TEST(list_of(tensor) == expected, boost::test_tools::per_element());
    BOOST_TEST(dropped == std::ranges::count(expected, kDroppedPair));
    auto on_device = ids_of(1, ids);
    auto number = drop_over_capacity_aten(on_device, matrix(1, weights), experts, capacity);
    BOOST_TEST(list_of(on_device) == expected, boost::test_tools::per_element());
    BOOST_TEST(*number.const_data_ptr<std::int64_t>() == dropped);
  }
}
