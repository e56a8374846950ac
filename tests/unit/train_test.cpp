// From a config to the parts of a trainer, and what a run remembers of its data. A trainer itself: mpi/trainer_health.

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <cmath>

#include "train/data_record.h"
#include "train/options.h"
#include "unit/plan_config.h"

using namespace meshard;
using meshard::test::config_with;

// Catches: a schedule that a run does not follow because its name becomes another one.
BOOST_AUTO_TEST_CASE(every_schedule_gives_a_run_its_own_rates) {
  struct Row {
    const char* type;
    double at_4, at_5, at_9;  // of 10 steps from 1 to 0, 0-based
  };
  const double cos_4 = 0.5 * (1 + std::cos(0.4 * std::acos(-1.0))), cos_9 = 0.5 * (1 + std::cos(0.9 * std::acos(-1.0)));
  for (auto& row : {Row{"constant", 1.0, 1.0, 1.0}, {"linear", 0.6, 0.5, 0.1}, {"cosine", cos_4, 0.5, cos_9},
                    {"wsd", 1.0, 1.0, 0.5}}) {
    std::vector<std::string> overrides{fmt::format("lr_schedule.type={}", row.type)};
    if (std::string(row.type) == "wsd") overrides.push_back("lr_schedule.decay_steps=2");
    auto options = schedule_options(config_with(overrides));
    auto tolerance = boost::test_tools::tolerance(1e-12);
    BOOST_TEST(learning_rate(options, 4) == row.at_4, tolerance);
    BOOST_TEST(learning_rate(options, 5) == row.at_5, tolerance);
    BOOST_TEST(learning_rate(options, 9) == row.at_9, tolerance);
  }
}

// Catches: a word of the config that becomes another word's option, or what an option is without one.
BOOST_AUTO_TEST_CASE(every_word_becomes_its_own_option) {
  auto with = [](const char* override) { return config_with({override}); };
  using Type = CorpusOptions::Type;
  BOOST_CHECK(corpus_options(with("data.type=synthetic")).type == Type::Synthetic);
  for (auto [word, type] : {std::pair{"text", Type::Text}, {"indexed", Type::Indexed}}) {
    auto config = config_with({});
    config.data.type = type == Type::Text ? DataConfig::Type::Text : DataConfig::Type::Indexed;
    BOOST_CHECK_MESSAGE(corpus_options(config).type == type, word);
  }
  BOOST_CHECK(world_options(with("comm.backend=auto")).backend == Backend::Auto);
  BOOST_CHECK(world_options(with("comm.backend=mpi")).backend == Backend::Mpi);
  BOOST_CHECK(world_options(with("comm.backend=nccl")).backend == Backend::Nccl);
  BOOST_CHECK(make_optimizer(with("optimizer.type=adamw"))->bytes_per_element() == 8);
  BOOST_CHECK(make_optimizer(with("optimizer.type=sgd"))->bytes_per_element() == 0);
}

// Catches: other data taken for the same, or the same for others because they lie elsewhere; a difference that is not
// told by the name of its file.
BOOST_AUTO_TEST_CASE(data_differ_by_content_and_order) {
  auto file = [](const char* name, std::int64_t bytes, std::uint64_t fingerprint) {
    DataFile file;
    file.name = name;
    file.bytes = bytes;
    file.fingerprint = fingerprint;
    return file;
  };
  const DataRecord before{{file("a", 10, 1), file("b", 20, 2)}, 5, 1};
  auto told = [&](DataRecord now) { return fmt::format("{}", fmt::join(data_differences(before, now), "; ")); };
  BOOST_TEST(told(before) == "");
  BOOST_TEST(told({{file("x", 10, 1), file("y", 20, 2)}, 5, 1}) == "");  // moved
  BOOST_TEST(told({{file("a", 10, 1), file("b", 30, 3)}, 5, 1}).find("b has grown") != std::string::npos);
  BOOST_TEST(told({{file("a", 10, 1)}, 5, 1}).find("b") != std::string::npos);
  BOOST_TEST(told({{file("a", 10, 1), file("b", 20, 2), file("c", 3, 3)}, 5, 1}).find("c is new") != std::string::npos);
  BOOST_TEST(told({{file("b", 20, 2), file("a", 10, 1)}, 5, 1}) != "");
  BOOST_TEST(told({{file("a", 10, 1), file("b", 20, 2)}, 6, 1}).find("6") != std::string::npos);
}
