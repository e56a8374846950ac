#include "optim/schedule.h"

#include <boost/test/unit_test.hpp>
#include <cmath>

#include "base/error.h"

using namespace meshard;
using Type = ScheduleOptions::Type;
namespace tt = boost::test_tools;

namespace {
ScheduleOptions options(Type type, std::int64_t warmup, std::int64_t total) {
  return {type, /*lr=*/1.0, warmup, /*min_lr=*/0.1, total, std::nullopt};
}
}  // namespace

// Catches: a first step at 0, a warm-up that ends before or after lr.
BOOST_AUTO_TEST_CASE(warmup_reaches_lr_with_its_last_step) {
  for (auto type : {Type::Constant, Type::Linear, Type::Cosine, Type::Wsd}) {
    auto schedule = options(type, 4, 100);
    BOOST_TEST(learning_rate(schedule, 0) == 0.25);
    BOOST_TEST(learning_rate(schedule, 1) == 0.5);
    BOOST_TEST(learning_rate(schedule, 3) == 1.0);
    BOOST_TEST(learning_rate(schedule, 4) == 1.0);
  }
}

// Catches: a constant schedule that decays to min_lr.
BOOST_AUTO_TEST_CASE(constant_stays) {
  BOOST_TEST(learning_rate(options(Type::Constant, 0, 10), 0) == 1.0);
  BOOST_TEST(learning_rate(options(Type::Constant, 0, 10), 1000000) == 1.0);
}

// Catches: a decay of the wrong length, or one that goes below min_lr.
BOOST_AUTO_TEST_CASE(linear_and_cosine_end_at_min_lr) {
  auto linear = options(Type::Linear, 2, 12);
  BOOST_TEST(learning_rate(linear, 7) == 0.55, tt::tolerance(1e-12));
  BOOST_TEST(learning_rate(linear, 11) == 0.1 + 0.9 * 0.1, tt::tolerance(1e-12));

  auto cosine = options(Type::Cosine, 2, 12);
  BOOST_TEST(learning_rate(cosine, 7) == 0.55, tt::tolerance(1e-12));
  BOOST_TEST(learning_rate(cosine, 4) == 0.1 + 0.9 * (1 + std::cos(0.2 * std::acos(-1.0))) / 2, tt::tolerance(1e-12));

  for (auto& schedule : {linear, cosine}) {
    for (std::int64_t step = 3; step < 12; ++step) {
      BOOST_TEST(learning_rate(schedule, step) < learning_rate(schedule, step - 1));
    }
    BOOST_TEST(learning_rate(schedule, 12) == 0.1);
    BOOST_TEST(learning_rate(schedule, 5000) == 0.1);
  }
}

// Catches: decay_steps counted from the start, or ignored.
BOOST_AUTO_TEST_CASE(decay_steps_count_from_the_end_of_warmup) {
  auto schedule = options(Type::Linear, 2, 100);
  schedule.decay_steps = 4;
  BOOST_TEST(learning_rate(schedule, 4) == 0.55, tt::tolerance(1e-12));
  BOOST_TEST(learning_rate(schedule, 6) == 0.1);
  BOOST_TEST(learning_rate(schedule, 99) == 0.1);
}

// Catches: a stable phase that is missing, or a decay that starts a step early.
BOOST_AUTO_TEST_CASE(wsd_is_stable_then_decays) {
  auto schedule = options(Type::Wsd, 5, 100);
  schedule.decay_steps = 20;
  BOOST_TEST(learning_rate(schedule, 80) == 1.0);
  BOOST_TEST(learning_rate(schedule, 81) == 1.0 - 0.9 / 20, tt::tolerance(1e-12));
  BOOST_TEST(learning_rate(schedule, 90) == 0.55, tt::tolerance(1e-12));
  BOOST_TEST(learning_rate(schedule, 100) == 0.1);

  schedule.decay_steps = std::nullopt;  // a tenth
  BOOST_TEST(learning_rate(schedule, 90) == 1.0);
  BOOST_TEST(learning_rate(schedule, 95) == 0.55, tt::tolerance(1e-12));
}

// Catches: a division by zero, or a rate that is not finite, at the edges.
BOOST_AUTO_TEST_CASE(edges_are_defined) {
  for (auto type : {Type::Linear, Type::Cosine, Type::Wsd}) {
    BOOST_TEST(learning_rate(options(type, 0, 1), 0) == 1.0);
    BOOST_TEST(learning_rate(options(type, 10, 10), 9) == 1.0);
    BOOST_TEST(learning_rate(options(type, 10, 10), 10) == 0.1);
    BOOST_TEST(learning_rate(options(type, 20, 10), 9) == 0.5);
    BOOST_TEST(learning_rate(options(type, 0, 0), 0) == 0.1);
    auto no_decay = options(type, 2, 10);
    no_decay.decay_steps = 0;
    BOOST_TEST(learning_rate(no_decay, 1) == 1.0);
    BOOST_TEST(learning_rate(no_decay, 10) == 0.1);
    BOOST_CHECK_THROW(learning_rate(options(type, 0, 1), -1), ArgumentError);
  }
  auto long_decay = options(Type::Wsd, 4, 8);
  long_decay.decay_steps = 100;
  BOOST_TEST(learning_rate(long_decay, 3) == 1.0);
  BOOST_TEST(learning_rate(long_decay, 6) == 0.55, tt::tolerance(1e-12));
}
