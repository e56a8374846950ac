#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <fstream>

#include "base/error.h"
#include "runs/compare.h"

using namespace meshard;
namespace fs = std::filesystem;
namespace tt = boost::test_tools;
using Json = RunMetrics::Json;

namespace {

struct RunsFolder {
  fs::path folder = fs::temp_directory_path() / ("meshard-runs-" + std::to_string(getpid()));
  RunsFolder() { fs::create_directory(folder); }
  ~RunsFolder() { fs::remove_all(folder); }

  /// Writes the text as run `name`'s metrics.jsonl.
  fs::path write(const std::string& name, const std::string& text) const {
    fs::create_directory(folder / name);
    std::ofstream(folder / name / "metrics.jsonl", std::ios::binary) << text;
    return folder / name;
  }
  RunMetrics run(const std::string& name, const std::string& text) const { return read_run(write(name, text)); }
};

std::string joined(const std::vector<Json>& lines) {
  std::string text;
  for (auto& line : lines) text += line.dump() + "\n";
  return text;
}

/// A run of two steps and an evaluation, of a model whose layers 1 and 2 have experts; the tests change copies of it.
std::vector<Json> lines_of_a_run() {
  auto step = [](int number, double loss) {
    auto layer = [](int index, double bias) {
      return Json{{"layer", index},    {"count_total", 64},  {"max_vio", 0.25},      {"dead", 0},
                  {"bias_min", -bias}, {"bias_max", bias},   {"bias_finite", true},  {"dropped", 0},
                  {"min_gap", 1e-5},   {"counts", {30, 34}}, {"bias", {bias, -bias}}};
    };
    return Json{{"step", number},
                {"tokens", 32 * number},
                {"loss", loss},
                {"bits_per_byte", loss / 0.7},
                {"grad_norm", 1.5},
                {"lr", 1e-3},
                {"step_ms", {{"min", 1.0}, {"median", 2.0}, {"max", 3.0}}},
                {"mfu", nullptr},
                {"comm_bytes", {{"all_gather", {{"dp_shard", {{"count", 3}, {"bytes", 96}}}}}}},
                {"nonfinite", Json::array()},
                {"moe", {{"aux_loss", 0.01}, {"z_loss", 0.0}, {"layers", {layer(1, 0.001), layer(2, 0.002)}}}},
                {"unit_grad_norm", {{"model.layers.1", 0.5}, {"model.layers.0", 0.75}}}};
  };
  Json mesh{{"dp_outer", 2}, {"dp_shard", 2}, {"expert_dp", 4}, {"expert", 1}};
  return {Json{{"header", {{"ranks", 4}, {"mesh", mesh}, {"strategy", "hsdp"}, {"model_hash", "00aa"}}}}, step(1, 3.5),
          step(2, 3.25), Json{{"step", 2}, {"eval_loss", 3.375}, {"eval_bits_per_byte", 4.8}},
          Json{{"end", {{"exit", 0}, {"step", 2}, {"reason", "done"}}}}};
}

/// `a` as it is against the same lines after `change`.
template <typename Change>
Comparison against_changed(const RunsFolder& runs, Change change, const CompareOptions& options = {}) {
  auto lines = lines_of_a_run();
  auto a = runs.run("a", joined(lines));
  change(lines);
  return compare_runs(a, runs.run("b", joined(lines)), options);
}

std::string text_of(const Difference& difference) {
  return fmt::format("{} {} [{}] {} {}", difference.step, difference.metric, difference.where, difference.a,
                     difference.b);
}

std::vector<std::string> texts_of(const Comparison& comparison) {
  std::vector<std::string> texts;
  for (auto& difference : comparison.differences) texts.push_back(text_of(difference));
  return texts;
}

using Texts = std::vector<std::string>;

template <typename Failure, typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Failure& error) {
    return error.what();
  }
  return "accepted";
}

bool says(const std::string& message, std::initializer_list<std::string> parts) {
  return std::ranges::all_of(parts, [&](const std::string& part) {
    bool found = message.find(part) != std::string::npos;
    if (!found) BOOST_TEST_MESSAGE("missing `" << part << "` in: " << message);
    return found;
  });
}

}  // namespace

// Catches: lines of one kind taken for another.
BOOST_FIXTURE_TEST_CASE(every_kind_of_line_is_read, RunsFolder) {
  auto run = this->run("a", joined(lines_of_a_run()));
  BOOST_TEST(run.headers.size() == 1);
  BOOST_TEST(run.headers[0].at("ranks") == 4);
  BOOST_TEST(run.steps.size() == 2);
  BOOST_TEST(run.steps.at(2).at("loss") == 3.25);
  BOOST_TEST(run.evals.size() == 1);
  BOOST_TEST(run.evals.at(2).at("eval_loss") == 3.375);
  BOOST_TEST(run.end->at("reason") == "done");
  BOOST_TEST(!run.torn);
  BOOST_TEST(run.fault() == "");
}

// Catches: a resumed run whose old lines win, or whose fault is lost.
BOOST_FIXTURE_TEST_CASE(of_a_step_that_stands_twice_the_later_line_counts, RunsFolder) {
  auto run = this->run("a", R"({"header":{"fault":"count_in_eval"}}
{"step":1,"loss":3.0}
{"step":2,"loss":2.0}
{"step":2,"eval_loss":2.5}
{"end":{"exit":75}}
{"header":{"ranks":2}}
{"step":2,"loss":2.25}
{"step":2,"eval_loss":2.75}
{"end":{"exit":0}}
)");
  BOOST_TEST(run.headers.size() == 2);
  BOOST_TEST(run.steps.size() == 2);
  BOOST_TEST(run.steps.at(2).at("loss") == 2.25);
  BOOST_TEST(run.evals.at(2).at("eval_loss") == 2.75);
  BOOST_TEST(run.end->at("exit") == 0);
  BOOST_TEST(run.fault() == "count_in_eval");
}

// Catches: a killed run that cannot be read, or half a number taken for a whole one.
BOOST_FIXTURE_TEST_CASE(a_torn_last_line_is_left_out, RunsFolder) {
  const std::string whole = "{\"step\":1,\"loss\":3.0}\n", last = "{\"step\":2,\"loss\":2.25}";
  for (std::size_t size = 1; size < last.size(); ++size) {
    auto run = this->run("a", whole + last.substr(0, size));
    BOOST_TEST(run.torn);
    BOOST_TEST(run.steps.size() == 1);
    BOOST_TEST(!run.end.has_value());
  }
  auto run = this->run("a", whole + last);
  BOOST_TEST(!run.torn);
  BOOST_TEST(run.steps.size() == 2);
}

// Catches: damage in the middle that is passed over, or said without its place.
BOOST_FIXTURE_TEST_CASE(unusable_files_are_named, RunsFolder) {
  auto refusal = [&](const std::string& text) { return message_of<IoError>([&] { run("broken", text); }); };
  const std::string step = "{\"step\":1,\"loss\":3.0}\n";
  BOOST_TEST(refusal(step) == "accepted");
  BOOST_TEST(says(refusal(step + "{\"step\":2,\"lo\n" + step), {"broken/metrics.jsonl:2: ", "`{\"step\":2,\"lo`"}));
  for (const char* line : {"\n", "[1]\n", "{\"loss\":1.0}\n", "{\"step\":1.5}\n", "{\"step\":2,\"loss\":nan}\n"}) {
    BOOST_TEST(says(refusal(step + step + line + step), {"broken/metrics.jsonl:3: "}));
    BOOST_TEST(says(refusal(step + line), {"broken/metrics.jsonl:2: "}));
  }
  BOOST_TEST(says(refusal(""), {"broken/metrics.jsonl", "no step"}));
  BOOST_TEST(says(refusal("{\"header\":{}}\n"), {"broken/metrics.jsonl:1: no step"}));
  auto message = message_of<IoError>([&] { read_run(folder / "nowhere"); });
  BOOST_TEST(says(message, {"nowhere/metrics.jsonl", "No such file", "expected a run's folder"}));
}

// Catches: differences made up, and metrics compared that clock, machine, mesh or the fault's name change.
BOOST_FIXTURE_TEST_CASE(what_the_mesh_and_the_clock_change_is_not_compared, RunsFolder) {
  auto comparison = against_changed(*this, [](auto& lines) {
    for (auto step : {1, 2}) {
      auto& line = lines[step];
      line["bits_per_byte"] = 99.0;
      line["step_ms"]["median"] = 99.0;
      line["mfu"] = 0.5;
      line["comm_bytes"]["all_reduce"]["dp_outer"]["count"] = 1;
      line["moe"]["layers"][0]["min_gap"] = nullptr;
      line["fault"] = "none_of_the_tests";
      for (auto key : {"tokens_per_s", "tflops", "mem_peak_bytes", "data_ms", "comm_ms", "checkpoint_stall_ms"}) {
        line[key] = 99;
      }
    }
    lines[3]["eval_bits_per_byte"] = 99.0;
  });
  BOOST_TEST(comparison.same());
  BOOST_TEST(comparison.steps == 2);
}

// Catches: a tolerance that is absolute, relative to the smaller, or applied to integers; --exact that rounds.
BOOST_FIXTURE_TEST_CASE(floats_have_a_tolerance_and_integers_none, RunsFolder) {
  auto differ = [&](const char* a, const char* b, CompareOptions options = {}) {
    auto line = [](const char* value) { return fmt::format("{{\"step\":1,\"x\":{}}}\n", value); };
    auto comparison = compare_runs(run("a", line(a)), run("b", line(b)), options);
    return !comparison.same();
  };
  const CompareOptions exact{.exact = true}, tenth{.rtol = 0.1}, zero{.rtol = 0.0};
  BOOST_TEST(!differ("100.0", "100.0019"));
  BOOST_TEST(differ("100.0", "100.0021"));
  BOOST_TEST(differ("1e-20", "1.0001e-20"));
  BOOST_TEST(!differ("0.0", "1e-30"));
  BOOST_TEST(differ("0.0", "2e-30"));
  BOOST_TEST(!differ("9.0", "10.0", tenth));
  BOOST_TEST(!differ("10.0", "9.0", tenth));
  BOOST_TEST(differ("8.9", "10.0", tenth));
  BOOST_TEST(differ("-1.0", "1.0", tenth));
  BOOST_TEST(differ("1000000", "1000001"));
  BOOST_TEST(differ("9007199254740992", "9007199254740993"));
  BOOST_TEST(!differ("1", "1.00001"));
  BOOST_TEST(differ("true", "false"));
  BOOST_TEST(differ("true", "1"));
  BOOST_TEST(differ("\"a\"", "\"b\""));
  BOOST_TEST(differ("null", "1.0"));
  BOOST_TEST(!differ("null", "null"));

  BOOST_TEST(!differ("0.1", "0.10000000000000002"));
  BOOST_TEST(differ("0.1", "0.10000000000000002", exact));
  BOOST_TEST(differ("0.1", "0.10000000000000002", zero));
  BOOST_TEST(!differ("0.1", "0.10000000000000001", exact));
  BOOST_TEST(!differ("0.0", "-0.0", zero));
  BOOST_TEST(differ("0.0", "-0.0", exact));
  BOOST_TEST(differ("5e-324", "1e-323", exact));
}

// Catches: a difference of one layer or one expert told of another, or after a later place.
BOOST_FIXTURE_TEST_CASE(differences_are_ordered_by_step_place_and_layer, RunsFolder) {
  auto comparison = against_changed(*this, [](auto& lines) {
    auto& first = lines[1]["moe"]["layers"];
    std::swap(first[0], first[1]);  // the layer's number counts, not its place
    first[1]["bias"][1] = -0.003;
    first[1]["bias_max"] = 0.004;
    first[0]["bias_max"] = nullptr;
    first[0]["bias_finite"] = false;
    lines[1]["moe"]["z_loss"] = 0.5;
    lines[1]["unit_grad_norm"]["model.layers.0"] = 1.5;
    lines[1]["nonfinite"] = {"loss"};
    lines[2]["loss"] = 3.5;
    lines[2]["moe"]["layers"][1]["counts"] = {31, 33};
    lines[3]["eval_loss"] = 3.0;
  });
  BOOST_TEST(
      texts_of(comparison) ==
          (Texts{"1 nonfinite [] [] [\"loss\"]", "1 moe.z_loss [] 0.0 0.5", "1 moe.bias_max [layer 1] 0.001 0.004",
                 "1 moe.bias_max [layer 2] 0.002 null", "1 moe.bias_finite [layer 2] true false",
                 "1 moe.bias [layer 1, expert 1] -0.001 -0.003", "1 unit_grad_norm [model.layers.0] 0.75 1.5",
                 "2 loss [] 3.25 3.5", "2 moe.counts [layer 2, expert 0] 30 31",
                 "2 moe.counts [layer 2, expert 1] 34 33", "2 eval_loss [] 3.375 3.0"}),
      tt::per_element());
  BOOST_TEST(*comparison.differences[2].relative == 0.75, tt::tolerance(1e-12));
  BOOST_TEST(!comparison.differences[3].relative.has_value());
  BOOST_TEST(*comparison.differences[8].relative == 1.0 / 31, tt::tolerance(1e-12));
}

// Catches: a metric that only one run logs passed over, or told at every step, layer and expert.
BOOST_FIXTURE_TEST_CASE(a_metric_of_one_run_is_one_difference, RunsFolder) {
  auto comparison = against_changed(*this, [](auto& lines) {
    for (auto step : {1, 2}) {
      lines[step].erase("grad_norm");
      lines[step]["extra"] = 7;
      for (auto& layer : lines[step]["moe"]["layers"]) layer.erase("counts");
    }
    lines[2].erase("lr");  // step 1 has it
  });
  BOOST_TEST(texts_of(comparison) == (Texts{"1 grad_norm [] 1.5 missing", "1 moe.counts [layer 1] [30,34] missing",
                                            "1 extra [] missing 7", "2 lr [] 0.001 missing"}),
             tt::per_element());
}

// Catches: models of other depth or width compared where they overlap only.
BOOST_FIXTURE_TEST_CASE(missing_layers_and_experts_differ, RunsFolder) {
  auto comparison = against_changed(*this,
                                    [](auto& lines) {
                                      lines[1]["moe"]["layers"].erase(0);
                                      lines[1]["moe"]["layers"][0]["counts"] = {30, 34, 0};
                                      lines[2].erase("moe");
                                    },
                                    {.metrics = {"moe.counts"}});
  BOOST_TEST(texts_of(comparison) ==
                 (Texts{"1 moe.counts [layer 1] [30,34] missing", "1 moe.counts [layer 2, expert 2] missing 0",
                        "2 moe.counts [layer 1] [30,34] missing", "2 moe.counts [layer 2] [30,34] missing"}),
             tt::per_element());
}

// Catches: a run that stopped early taken for the same.
BOOST_FIXTURE_TEST_CASE(missing_steps_and_evaluations_are_listed, RunsFolder) {
  const std::string a = R"({"step":1,"x":1}
{"step":2,"x":1}
{"step":2,"eval_loss":1.0}
{"step":3,"x":1}
)";
  const std::string b = R"({"step":2,"x":1}
{"step":3,"x":1}
{"step":3,"eval_loss":1.0}
{"step":4,"x":1}
)";
  auto run_a = run("a", a), run_b = run("b", b);
  auto comparison = compare_runs(run_a, run_b, {});
  BOOST_TEST(!comparison.same());
  BOOST_TEST(comparison.differences.empty());
  BOOST_TEST(comparison.steps == 2);
  BOOST_TEST(comparison.only_a == (std::vector<std::int64_t>{1, 2}), tt::per_element());
  BOOST_TEST(comparison.only_b == (std::vector<std::int64_t>{3, 4}), tt::per_element());
  auto text = comparison_text(run_a, run_b, comparison);
  BOOST_TEST(says(text, {"2 steps compared\n", "only in a: step 1\n", "only in a: evaluation 2\n",
                         "only in b: step 4\n", "only in b: evaluation 3\n", "same where both have a step\n"}));

  auto of_x = compare_runs(run_a, run_b, {.metrics = {"x"}});
  BOOST_TEST(of_x.only_a == std::vector<std::int64_t>{1}, tt::per_element());
  BOOST_TEST(of_x.only_b == std::vector<std::int64_t>{4}, tt::per_element());
  auto late = run("late", "{\"step\":7,\"x\":1}\n");
  auto message = message_of<ArgumentError>([&] { compare_runs(run_a, late, {}); });
  BOOST_TEST(says(message, {"no step stands in both", "a has 1 to 3", "late has 7 to 7"}));
}

// Catches: a selection that hides what was asked for, or shows more; a mistyped name that compares nothing.
BOOST_FIXTURE_TEST_CASE(only_the_metrics_asked_for_are_compared, RunsFolder) {
  auto metrics_of = [&](std::vector<std::string> names) {
    auto comparison = against_changed(*this,
                                      [](auto& lines) {
                                        lines[1]["loss"] = 1.0;
                                        lines[1]["step_ms"]["max"] = 9.0;
                                        lines[1]["comm_bytes"]["all_gather"]["dp_shard"]["bytes"] = 97;
                                        lines[1]["moe"]["aux_loss"] = 1.0;
                                        for (auto& layer : lines[1]["moe"]["layers"])
                                          layer["dead"] = 1, layer["min_gap"] = 1.0;
                                        lines[3]["eval_loss"] = 1.0;
                                      },
                                      {.metrics = std::move(names)});
    return texts_of(comparison);
  };
  BOOST_TEST(metrics_of({"loss"}) == Texts{"1 loss [] 3.5 1.0"}, tt::per_element());
  BOOST_TEST(metrics_of({"grad_norm", "lr"}).empty());
  BOOST_TEST(metrics_of({"eval_loss"}) == Texts{"2 eval_loss [] 3.375 1.0"}, tt::per_element());
  BOOST_TEST(metrics_of({"step_ms"}) == Texts{"1 step_ms [max] 3.0 9.0"}, tt::per_element());
  BOOST_TEST(metrics_of({"comm_bytes"}) == Texts{"1 comm_bytes [all_gather.dp_shard.bytes] 96 97"}, tt::per_element());
  BOOST_TEST(metrics_of({"moe.dead"}) == (Texts{"1 moe.dead [layer 1] 0 1", "1 moe.dead [layer 2] 0 1"}),
             tt::per_element());
  BOOST_TEST(metrics_of({"moe"}) ==
                 (Texts{"1 moe.aux_loss [] 0.01 1.0", "1 moe.dead [layer 1] 0 1", "1 moe.dead [layer 2] 0 1"}),
             tt::per_element());
  BOOST_TEST(metrics_of({"moe.min_gap"}).size() == 2);
  for (std::string name : {"losss", "mo", "moe.", "layers", "step"}) {
    auto message = message_of<ArgumentError>([&] { metrics_of({"loss", name}); });
    BOOST_TEST(says(message, {"`" + name + "`", "tokens, loss", "moe.bias_max", "eval_loss"}));
  }
}

// Catches: a report that cannot be read at a glance, or leaves out the faults, the meshes, or the start.
BOOST_FIXTURE_TEST_CASE(the_text_names_the_runs_and_the_first_difference, RunsFolder) {
  auto lines = lines_of_a_run();
  auto a = run("clean", joined(lines));
  BOOST_TEST(comparison_text(a, a, compare_runs(a, a, {.exact = true})) ==
             fmt::format("a  {0}  4 ranks = dp_outer 2 x dp_shard 2, expert 1, hsdp\n"
                         "b  {0}  4 ranks = dp_outer 2 x dp_shard 2, expert 1, hsdp\n"
                         "2 steps compared\nsame\n",
                         (folder / "clean").string()));

  lines[0]["header"]["fault"] = "counts_in_bf16";
  lines[0]["header"]["model_hash"] = "00bb";
  lines[1]["moe"]["layers"][1]["bias_max"] = 0.0016;
  lines[2]["moe"]["layers"][0]["bias_max"] = 0.0015;
  lines[2]["moe"]["layers"][1]["bias_max"] = 0.0005;
  lines[2]["grad_norm"] = nullptr;
  lines[4] = lines[0];
  lines[4]["header"]["ranks"] = 1;
  lines[4]["header"]["mesh"] = {{"dp_outer", 1}, {"dp_shard", 1}, {"expert_dp", 1}, {"expert", 1}};
  auto b = run("bad", joined(lines) + "{\"ste");
  BOOST_TEST(comparison_text(a, b, compare_runs(a, b, {})) ==
             fmt::format("a  {0}/clean  4 ranks = dp_outer 2 x dp_shard 2, expert 1, hsdp\n"
                         "b  {0}/bad    4 ranks = dp_outer 2 x dp_shard 2, expert 1, hsdp; then 1 rank = dp_outer 1 x "
                         "dp_shard 1, expert 1, hsdp; fault counts_in_bf16; its last line is cut off\n"
                         "the models started differently: model_hash 00aa against 00bb\n"
                         "2 steps compared\n"
                         "first difference: step 1, moe.bias_max, layer 2: 0.002 against 0.0016 (relative 2.0e-01)\n"
                         "\n"
                         "metric        first step  steps  largest  where\n"
                         "moe.bias_max           1      2  7.5e-01  step 2, layer 2\n"
                         "grad_norm              2      1        -  step 2\n",
                         folder.string()));
}

// Catches: a table that scrolls the first difference away.
BOOST_FIXTURE_TEST_CASE(the_table_is_short, RunsFolder) {
  Json a{{"step", 1}}, b{{"step", 1}};
  for (int i = 0; i < 40; ++i) {
    a[fmt::format("metric_{}", i)] = i;
    b[fmt::format("metric_{}", i)] = i + 1;
  }
  auto run_a = run("a", a.dump() + "\n"), run_b = run("b", b.dump() + "\n");
  auto text = comparison_text(run_a, run_b, compare_runs(run_a, run_b, {}));
  BOOST_TEST(says(text, {"a  no header\n", "step 1, metric_0: 0 against 1 (relative 1.0e+00)", "\nmetric_24 "}));
  BOOST_TEST(text.find("\nmetric_25 ") == std::string::npos);
  BOOST_TEST(text.ends_with("and 15 more\n"));
}
