#include <cmath>

#include "report/thin.h"
#include "unit/report_folder.h"

using namespace meshard;
using namespace meshard::report_test;
namespace tt = boost::test_tools;

// Catches: numbers read from the wrong key, level or layer; layers not folded into their worst; spaces, escapes and
// unknown fields, deep ones too, that lead the reader astray.
BOOST_FIXTURE_TEST_CASE(the_numbers_of_a_line_are_read, ReportFolder) {
  auto deep = std::string(200'000, '[') + std::string(200'000, ']');
  auto lines =
      this->lines(R"( { "step" : 7 , "loss":-1.5e-3,"tokens":70,"comm_bytes":{"all_gather":{"loss":{"step":1}}},)"
                  R"("text":"a\"},{\\","step_ms":{"min":1,"median":2.5,"max":3,"loss":8},"new":)" +
                  deep +
                  R"(,"unit_grad_norm":{"loss":9.0},"moe":{"aux_loss":0.5,"z_loss":0,"layers":[)"
                  R"({"layer":1,"max_vio":0.5,"bias_min":-2,"bias_max":1,"dead":1,"dropped":2,"loss":3},)"
                  R"({"layer":2,"max_vio":0.25,"bias_min":null,"bias_max":3,"dead":2,"dropped":3}]},)"
                  R"("grad_norm":null,"mfu":true,"nonfinite":[]})"
                  "\n");
  BOOST_TEST(lines.unknown.empty());
  BOOST_TEST_REQUIRE(lines.steps.steps == std::vector<std::int64_t>{7}, tt::per_element());
  auto value = [&](Curve curve) { return lines.steps[curve].at(0); };
  BOOST_TEST(value(Curve::Loss) == -1.5e-3);
  BOOST_TEST(value(Curve::StepMs) == 2.5);
  BOOST_TEST(value(Curve::AuxLoss) == 0.5);
  BOOST_TEST(value(Curve::ZLoss) == 0.0);
  BOOST_TEST(value(Curve::MaxVio) == 0.5);
  BOOST_TEST(value(Curve::BiasMin) == -2.0);
  BOOST_TEST(value(Curve::BiasMax) == 3.0);
  BOOST_TEST(value(Curve::Dead) == 3.0);
  BOOST_TEST(value(Curve::Dropped) == 5.0);
  BOOST_TEST(lines.steps.tokens.at(0) == 70.0);
  for (auto absent : {Curve::GradNorm, Curve::Mfu, Curve::Lr, Curve::StallMs}) BOOST_TEST(std::isnan(value(absent)));
  BOOST_TEST(bool(lines.steps.nonfinite.at(0)));
}

// Catches: half a number taken for a whole one; a torn line that is refused, or counted as damage.
BOOST_FIXTURE_TEST_CASE(a_line_cut_off_anywhere_is_torn, ReportFolder) {
  const std::string whole = step_line(1, 3.0) + "\n";
  for (auto& last : {step_line(2, 2.5), eval_line(2, 2.5), kHeader, kDone}) {
    for (std::size_t size = 1; size < last.size(); ++size) {
      auto lines = this->lines(whole + last.substr(0, size));
      BOOST_TEST_REQUIRE(lines.torn);
      BOOST_TEST_REQUIRE((lines.steps.steps.size() == 1 && lines.evals.steps.empty() && lines.headers.empty()));
    }
    BOOST_TEST(!this->lines(whole + last).torn);
  }
}

// Catches: damage that ends the reading, or that is passed over in silence.
BOOST_FIXTURE_TEST_CASE(lines_of_no_run_are_counted, ReportFolder) {
  std::string text;
  int number = 0;
  for (const char* line : {"", "[1]", "{}", "{\"loss\":1}", "{\"step\":1.5}", "{\"step\":-1}",
                           "{\"step\":2,\"loss\":nan}", "{\"step\":2}}", "{\"step\":2,}", "{\"step\":2 \"loss\":1}",
                           "{\"step\":2,\"x\":[1}", "\"step\"", "{\"header\":1}", "{\"note\":{\"step\":2}}"}) {
    text += std::string(line) + "\n" + step_line(10 + number++, 3.0) + "\n";
  }
  auto lines = this->lines(text);
  BOOST_TEST(lines.steps.steps.size() == 14u);
  BOOST_TEST_REQUIRE(lines.unknown.size() == 14u);
  BOOST_TEST(lines.unknown.front() == 1);
  BOOST_TEST(lines.unknown.back() == 27);
}

// Catches: a resumed run whose rolled-back lines stay, in one column only too.
BOOST_FIXTURE_TEST_CASE(of_a_step_that_stands_twice_the_later_line_counts, ReportFolder) {
  std::string text;
  for (auto& line : {step_line(1, 5.0), step_line(2, 4.0), eval_line(2, 4.5), step_line(3, 3.0), eval_line(3, 3.5),
                     kHeader, step_line(2, 4.125), step_line(2, 4.25), eval_line(2, 5.0), eval_line(2, 4.75)}) {
    text += line + "\n";
  }
  auto lines = this->lines(text);
  BOOST_TEST(lines.steps.steps == (std::vector<std::int64_t>{1, 2}), tt::per_element());
  BOOST_TEST(lines.steps[Curve::Loss] == (std::vector<double>{5.0, 4.25}), tt::per_element());
  BOOST_TEST(lines.evals.losses == (std::vector<double>{4.75}), tt::per_element());
  for (auto& column : lines.steps.curves) BOOST_TEST(column.size() == 2u);
  BOOST_TEST(lines.steps.offsets.size() == 2u);
  BOOST_TEST(text.substr(static_cast<std::size_t>(lines.steps.offsets[1])).starts_with(step_line(2, 4.25)));
}

// Catches: best, last or mean of the drawn points instead of all lines; speed as a plain mean; a NaN that wins.
BOOST_FIXTURE_TEST_CASE(numbers_are_of_all_lines, ReportFolder) {
  std::vector<std::string> lines{kHeader};
  for (int step = 1; step <= 3000; ++step) {
    lines.push_back(step_line(step, step == 1234 ? 0.5 : 2.0, step % 2 ? 100.0 : 300.0));
    if (step % 10 == 0) lines.push_back(eval_line(step, step == 1710 ? 1.0 : step == 20 ? NAN : 2.5));
  }
  lines.push_back(step_line(3010, 1.75, 50.0));
  auto report = this->report({run("a", lines).filename()});
  auto& numbers = report.runs.at(0).numbers;
  BOOST_TEST(*numbers.best_eval_loss == 1.0);
  BOOST_TEST(numbers.best_eval_step == 1710);
  BOOST_TEST(*numbers.bits_per_byte == 3.0);
  BOOST_TEST(*numbers.final_eval_loss == 2.5);
  BOOST_TEST(*numbers.final_loss == 1.75);
  BOOST_TEST(*numbers.mem_peak_bytes == 1002.0);
  // 1,500 steps of 10 tokens at 100/s, 1,500 at 300/s, then 10 steps at 50/s.
  BOOST_TEST(*numbers.step_time_s == 150.0 + 50.0 + 2.0, tt::tolerance(1e-9));
  BOOST_TEST(*numbers.tokens_per_s == 30100.0 / 202.0, tt::tolerance(1e-9));
  BOOST_TEST(*numbers.step_ms == 4.0, tt::tolerance(1e-9));
  auto& loss = report.runs[0].curves.at(0);
  BOOST_TEST(loss.mean.size() == 400u);
  BOOST_TEST(std::ranges::min(loss.low) == 0.5);
  BOOST_TEST(std::ranges::min(loss.mean) > 1.5);
}

// Catches: an extreme that thinning loses, a NaN that spreads, lines that two points share or none has.
BOOST_AUTO_TEST_CASE(thin_curves_keep_their_extremes) {
  const std::vector<double> values{1, 2, 3, NAN, 9, 5, NAN};
  const std::vector<std::int64_t> steps{10, 20, 30, 40, 50, 60, 70};
  auto curve = thin_curve("x", values, 3);  // 1 2 | 3 NaN | 9 5 NaN
  BOOST_TEST(curve.mean == (std::vector<double>{1.5, 3, 7}), tt::per_element());
  BOOST_TEST(curve.low == (std::vector<double>{1, 3, 5}), tt::per_element());
  BOOST_TEST(curve.high == (std::vector<double>{2, 3, 9}), tt::per_element());
  BOOST_TEST(thin_steps(steps, 3) == (std::vector<std::int64_t>{10, 30, 60}), tt::per_element());
  auto whole = thin_curve("x", values, 100);
  BOOST_TEST(whole.low.empty());
  BOOST_TEST(whole.mean.size() == 7u);
  BOOST_TEST(std::isnan(whole.mean[3]));
  for (std::size_t points : {1, 2, 3, 5, 7}) {
    std::size_t next = 0;
    for (std::size_t point = 0; point < points; ++point) {
      auto [first, last] = lines_of_point(point, points, 7);
      BOOST_TEST((first == next && last > first));
      next = last;
    }
    BOOST_TEST(next == 7u);
  }
}

// Catches: maps of another layer or expert, rows for columns, a dead expert that looks like a starved one.
BOOST_FIXTURE_TEST_CASE(maps_show_load_and_bias_of_every_expert, ReportFolder) {
  auto line = [](int step, std::vector<int> counts, Json bias) {
    Json dense{{"layer", 1}, {"max_vio", 0.5}};
    Json layer{{"layer", 4}, {"max_vio", step}, {"counts", counts}, {"bias", bias}};
    return Json{{"step", step}, {"loss", 1.0}, {"moe", {{"layers", {dense, layer}}}}}.dump();
  };
  auto report = this->report(
      {run("m", {kHeader, line(1, {10, 30}, {-0.5, 0.5}), R"({"step":2,"loss":1})", line(3, {40, 0}, {nullptr, 1.5})})
           .filename()});
  auto& maps = report.runs.at(0).maps;
  BOOST_TEST(maps.steps == (std::vector<std::int64_t>{1, 3}), tt::per_element());
  BOOST_TEST_REQUIRE(maps.layers.size() == 2u);
  BOOST_TEST(maps.layers[0].load.levels.empty());
  BOOST_TEST(maps.layers[1].layer == 4);
  auto& [layer, load, bias] = maps.layers[1];
  BOOST_TEST(load.low == 0.5);
  BOOST_TEST(load.high == 2.0);
  BOOST_TEST(load.levels == (std::vector<std::uint8_t>{1, 255, 170, 0}), tt::per_element());
  BOOST_TEST(bias.levels == (std::vector<std::uint8_t>{1, 0, 128, 255}), tt::per_element());
  BOOST_TEST(maps.max_vio.levels == (std::vector<std::uint8_t>{1, 1, 52, 255}), tt::per_element());
  auto page = report_html(report, "");
  BOOST_TEST(says(page, {R"("maps":{"steps":[1,3],"max_vio":[0.5,3,"AQE0/w=="],"layers":[{"layer":1,"load":[0,0,""],)",
                         R"({"layer":4,"load":[0.5,2,"Af+qAA=="],"bias":[-0.5,1.5,"AQCA/w=="]})"}));
}
