// Hardware files, and the search for a mesh.

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <set>

#include "base/error.h"
#include "plan/search.h"
#include "unit/plan_config.h"

using namespace meshard;
using meshard::test::kDense;
using meshard::test::kExperts;

namespace {

std::string problem_of(const std::string& text) {
  try {
    parse_hardware(text, "there/hardware.yaml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// What two nodes of four slow ranks are like: computation, links and memory all count.
Hardware small_nodes() {
  Hardware hardware;
  hardware.name = "small";
  hardware.ranks_per_node = 4;
  hardware.fp32_tflops = hardware.bf16_tflops = 1e-4;
  hardware.memory_gb_per_s = 1.0;
  hardware.kernel_us = hardware.collective_us = 1.0;
  hardware.node = Link{1.0, 1.0};
  hardware.network = Link{0.1, 10.0};
  return hardware;
}

}  // namespace

// Catches: a key that is not read or not written; shipped files that are no longer accepted.
BOOST_AUTO_TEST_CASE(hardware_is_written_as_it_is_read) {
  Hardware hardware{
      "a node: of mine",    3, 0.5, 0.25, 7.5, 0.75, 12.5, 3.25, 1.5, 2.5, Link{1.25, 9.5}, Link{0.5, 30.0},
      CoreRates{2.25, 1.75}};
  BOOST_TEST((parse_hardware(hardware_yaml(hardware, "one\ntwo"), "text") == hardware));
  for (auto* without : {"node", "network", "core"}) {
    auto less = hardware;
    if (std::string_view(without) == "network") less.network.reset();
    if (std::string_view(without) == "core") less.core.reset(), less.peak_tflops.reset();
    if (std::string_view(without) == "node") less.node.reset(), less.network.reset();
    BOOST_TEST((parse_hardware(hardware_yaml(less), "text") == less), without);
  }
  // What `plan` takes without --hardware is the file of that name.
  BOOST_TEST((load_hardware(MESHARD_CONFIGS "/hardware/h100_8.yaml") == Hardware{}));
  BOOST_TEST(load_hardware(MESHARD_CONFIGS "/hardware/h200_8.yaml").memory_gb == 141.0);
  BOOST_TEST(load_hardware(MESHARD_CONFIGS "/hardware/cpu_2.yaml").core.has_value());
}

// Catches: a slip in a hardware file that is passed over, or told without its place.
BOOST_AUTO_TEST_CASE(wrong_hardware_is_refused) {
  auto sound = hardware_yaml(Hardware{});
  auto with = [&](const std::string& old, const std::string& fresh) {
    auto text = sound;
    text.replace(text.find(old), old.size(), fresh);
    return problem_of(text);
  };
  BOOST_TEST(problem_of(sound) == "");
  BOOST_TEST(has(with("  kernel_us:", "  kernel_u:"),
                 "2 problems in there/hardware.yaml\n  hardware.yaml:5:3  rank.kernel_us: missing; expected a value\n"
                 "  hardware.yaml:11:3  rank.kernel_u: unknown key; did you mean `kernel_us`?"));
  BOOST_TEST(has(with("name:", "nmae:"), "hardware.yaml:2:1  nmae: unknown key; did you mean `name`?"));
  BOOST_TEST(
      has(with("ranks_per_node: 8", "ranks_per_node: 0"), "hardware.yaml:3:17  ranks_per_node: 0 is out of range"));
  BOOST_TEST(has(with("attention_share: 0.6", "attention_share: 1.6"), "rank.attention_share: 1.6 is out of range"));
  BOOST_TEST(has(with("memory_gb: 80.0", "memory_gb: \"80\""), "rank.memory_gb: the text \"80\" is not what"));
  BOOST_TEST(has(with("network:\n  gb_per_s: 45.0\n", "network:\n"), "network.gb_per_s: missing"));
  BOOST_TEST(has(with("network:\n  gb_per_s: 45.0\n  latency_us: 5.0\n", "network: fast\n"), "network: is a section"));
  BOOST_TEST(has(problem_of("[]"), "expected `schema: 1`"));
  BOOST_TEST(has(problem_of("schema: 2"), "schema: 2 is out of range"));
  BOOST_TEST(has(problem_of("{schema: 1"), "hardware.yaml:1"));
}

// Catches: a mesh that the search passes over, a slower one before it, one that does not fit, settings that pick
// another.
BOOST_AUTO_TEST_CASE(the_search_finds_what_trying_all_finds) {
  for (auto* text : {kDense, kExperts}) {
    constexpr int kRanks = 8;
    auto hardware = small_nodes();
    std::vector<std::string> batch = {"train.global_batch_size=32"};
    SearchOptions options{.ranks = kRanks, .memory_limit_gb = 130e-6};
    auto neutral = neutral_overrides(batch, options.free);
    auto result = search_meshes(parse_config(text, "test.yaml", neutral, kRanks), options, hardware);

    std::multiset<double> fitting;
    int too_large = 0;
    for (std::size_t strategy = 0; strategy < kStrategyNames.size(); ++strategy) {
      for (int outer : {1, 2, 4, 8}) {
        for (int expert : {1, 2, 4}) {
          for (auto* recompute : {"none", "full"}) {
            for (int micro : {1, 2, 4}) {
              if (text == kDense && expert > 1) continue;
              bool hybrid = strategy == 4 || strategy == 5;
              if ((strategy == 3 && outer > 1) || (hybrid && outer == 1)) continue;  // does what another does
              auto all = batch;
              all.insert(all.end(),
                         {fmt::format("parallel.strategy={}", kStrategyNames[strategy]),
                          fmt::format("parallel.dp_outer={}", outer), fmt::format("parallel.expert={}", expert),
                          fmt::format("train.activation_checkpoint={}", recompute),
                          fmt::format("train.micro_batch_size={}", micro)});
              auto plan = make_plan(parse_config(text, "test.yaml", all, kRanks), kRanks);
              bool fits = static_cast<double>(plan.bytes.total()) <= options.memory_limit_gb * 1e9;
              too_large += !fits;
              if (fits) fitting.insert(three_digits(predict_step(plan, hardware).seconds));
            }
          }
        }
      }
    }
    BOOST_TEST_REQUIRE(fitting.size() > 10u);
    BOOST_TEST_REQUIRE(too_large > 10);
    BOOST_TEST(result.considered == static_cast<std::int64_t>(fitting.size()) + too_large);
    BOOST_TEST(result.ruled_out.at(0).count == too_large);
    BOOST_TEST_REQUIRE(result.best.size() == 10u);
    auto best = fitting.begin();
    for (auto& mesh : result.best) {
      BOOST_TEST(three_digits(mesh.seconds) == *best++);
      auto all = batch;
      auto said = mesh.settings(result.free);
      for (std::size_t at = 0; (at = said.find("--set ", at)) != std::string::npos;) {
        at += 6;
        all.push_back(said.substr(at, said.find(' ', at) - at));
      }
      auto plan = make_plan(parse_config(text, "test.yaml", all, kRanks), kRanks);
      BOOST_TEST(plan.bytes.total() == mesh.memory_bytes);
      BOOST_TEST(predict_step(plan, hardware).seconds == mesh.seconds, boost::test_tools::tolerance(1e-12));
    }
  }
}

// Catches: a key that the user set and the search changes; ties that go either way; an empty answer without its reason.
BOOST_AUTO_TEST_CASE(searches_keep_what_is_set) {
  SearchOptions options{.ranks = 4, .memory_limit_gb = 80.0};
  auto overrides = neutral_overrides({"parallel.strategy=zero1", "train.micro_batch_size=1"}, options.free);
  auto config = parse_config(kDense, "test.yaml", overrides, 4);
  auto result = search_meshes(config, options, small_nodes());
  BOOST_TEST(result.considered == 3 * 2);
  for (auto& mesh : result.best) {
    BOOST_TEST((mesh.strategy == Strategy::Zero1 && mesh.micro_batch == 1));
    BOOST_TEST(!has(mesh.settings(result.free), "strategy"));
    BOOST_TEST(!has(mesh.settings(result.free), "expert"));  // a dense model
  }
  // On hardware without limits nothing but memory is left to tell meshes apart.
  auto boundless = small_nodes();
  boundless.node = boundless.network = Link{1e12, 0.0};
  boundless.collective_us = 0.0;
  result = search_meshes(parse_config(kDense, "test.yaml", neutral_overrides({}, options.free), 4), options, boundless);
  for (std::size_t i = 1; i < result.best.size(); ++i) {
    auto &before = result.best[i - 1], &mesh = result.best[i];
    if (three_digits(before.seconds) == three_digits(mesh.seconds))
      BOOST_TEST(before.memory_bytes <= mesh.memory_bytes);
  }
  options.memory_limit_gb = 1e-6;
  result = search_meshes(config, options, small_nodes());
  BOOST_TEST(result.best.empty());
  BOOST_TEST(has(search_text(result, options, small_nodes()), "28 need more than 1e-06 GB a rank; the least takes"));
}
