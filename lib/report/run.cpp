#include "report/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "report/settings.h"
#include "report/thin.h"
#include "runs/metrics.h"

namespace meshard {

namespace fs = std::filesystem;

namespace {

using HeaderJson = nlohmann::json;

std::optional<double> number_at(const HeaderJson& header, const char* key) {
  return header.contains(key) && header[key].is_number() ? std::optional(header[key].get<double>()) : std::nullopt;
}

std::string text_at(const HeaderJson& header, const char* key) {
  return header.contains(key) && header[key].is_string() ? header[key].get<std::string>() : "";
}

RunNumbers numbers_of(const RunLines& lines) {
  RunNumbers numbers;
  auto& steps = lines.steps;
  auto& evals = lines.evals;
  auto last_of = [](const std::vector<double>& values) {
    return values.empty() ? std::nullopt : std::optional(values.back());
  };
  auto mean_of = [](const std::vector<double>& values) -> std::optional<double> {
    auto mean = thin_curve("", values, 1).mean;
    return mean.empty() || std::isnan(mean[0]) ? std::nullopt : std::optional(mean[0]);
  };
  numbers.final_loss = last_of(steps[Curve::Loss]);
  numbers.final_eval_loss = last_of(evals.losses);
  for (std::size_t i = 0; i < evals.losses.size(); ++i) {
    if (!std::isfinite(evals.losses[i]) || evals.losses[i] >= numbers.best_eval_loss.value_or(INFINITY)) continue;
    numbers.best_eval_loss = evals.losses[i];
    numbers.best_eval_step = evals.steps[i];
    if (!std::isnan(evals.bits_per_byte[i])) numbers.bits_per_byte = evals.bits_per_byte[i];
  }
  if (evals.losses.empty()) numbers.bits_per_byte = last_of(steps.bits_per_byte);
  for (auto memory : steps[Curve::Memory]) {
    if (!std::isnan(memory)) numbers.mem_peak_bytes = std::max(memory, numbers.mem_peak_bytes.value_or(0.0));
  }
  numbers.step_ms = mean_of(steps[Curve::StepMs]);
  numbers.data_ms = mean_of(steps[Curve::DataMs]);
  numbers.comm_ms = mean_of(steps[Curve::CommMs]);
  numbers.comm_busy_ms = mean_of(steps[Curve::CommBusyMs]);
  numbers.stall_ms = mean_of(steps[Curve::StallMs]);
  for (auto dropped : steps[Curve::Dropped]) numbers.dropped += std::isnan(dropped) ? 0.0 : dropped;
  numbers.nonfinite_lines = std::ranges::count(steps.nonfinite, true);
  auto first = std::ranges::find(steps.nonfinite, true);
  if (first != steps.nonfinite.end()) {
    numbers.first_nonfinite_step = steps.steps[static_cast<std::size_t>(first - steps.nonfinite.begin())];
  }
  return numbers;
}

/// A line's speed counts for the tokens since the line before it.
void add_speed(RunNumbers& numbers, const RunLines& lines) {
  auto& steps = lines.steps;
  if (steps.steps.empty()) return;
  auto begun = lines.headers.empty() ? 0.0 : number_at(lines.headers.front(), "steps_done").value_or(0.0);
  double before = steps.tokens[0] * begun / static_cast<double>(std::max<std::int64_t>(1, steps.steps[0]));
  double tokens = 0.0, seconds = 0.0;
  for (std::size_t i = 0; i < steps.steps.size(); ++i) {
    auto speed = steps[Curve::TokensPerS][i], since = steps.tokens[i] - before;
    if (!std::isnan(steps.tokens[i])) before = steps.tokens[i];
    if (!(speed > 0.0 && since > 0.0)) continue;
    tokens += since;
    seconds += since / speed;
  }
  if (seconds == 0.0) return;
  numbers.tokens_per_s = tokens / seconds;
  numbers.step_time_s = seconds;
}

/// The second word of the line that begins with "meshard".
std::string version_of(const HeaderJson& header) {
  std::istringstream lines(text_at(header, "versions"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, version;
    if (words >> name >> version && name == "meshard") return version;
  }
  return "";
}

/// "node1, node2 x 4": hosts in the order of the ranks, and ranks on them.
std::string hosts_of(const HeaderJson& header) {
  std::vector<std::pair<std::string, int>> hosts;
  if (!header.contains("places") || !header["places"].is_array()) return "";
  for (auto& place : header["places"]) {
    auto host = place.is_object() ? text_at(place, "host") : "";
    auto known = std::ranges::find(hosts, host, &std::pair<std::string, int>::first);
    known == hosts.end() ? void(hosts.emplace_back(host, 1)) : void(++known->second);
  }
  std::vector<std::string> texts;
  for (auto& [host, ranks] : hosts) texts.push_back(ranks == 1 ? host : fmt::format("{} x {}", host, ranks));
  return fmt::format("{}", fmt::join(texts, ", "));
}

RunFacts facts_of(const RunLines& lines, const LooseConfig& config) {
  RunFacts facts{.steps = config.number("train.steps").value_or(0)};
  if (lines.headers.empty()) return facts;
  auto& header = lines.headers.back();
  facts.version = version_of(header);
  facts.mesh = mesh_of_header(RunMetrics::Json(header));
  facts.hosts = hosts_of(header);
  facts.parameters = number_at(header, "parameters");
  facts.active_parameters = number_at(header, "active_parameters");
  for (auto& each : lines.headers) {
    if (auto fault = text_at(each, "fault"); !fault.empty()) facts.fault = fault;
  }
  return facts;
}

void add_curves(RunReport& run, const RunLines& lines, std::size_t points) {
  run.steps = thin_steps(lines.steps.steps, points);
  run.eval_steps = thin_steps(lines.evals.steps, points);
  run.eval_loss = thin_curve("eval_loss", lines.evals.losses, points);
  for (std::size_t i = 0; i < kCurveNames.size(); ++i) {
    auto curve = thin_curve(std::string(kCurveNames[i]), lines.steps.curves[i], points);
    if (!std::ranges::all_of(curve.mean, [](double value) { return std::isnan(value); })) {
      run.curves.push_back(std::move(curve));
    }
  }
}

void read_state(RunReport& run, const RunLines& lines) {
  try {
    run.state = run_state(run.folder);
    run.state_name = to_string(run.state.phase);
  } catch (const std::exception& error) {  // of a lock too
    run.state_name = "damaged";
    run.state.phase = RunPhase::Died;
    run.state.starts = static_cast<int>(lines.headers.size());
    run.state.step = lines.steps.steps.empty() ? 0 : lines.steps.steps.back();
    std::string what = error.what();
    auto folder = run.folder.string() + "/";
    if (what.starts_with(folder)) what.erase(0, folder.size());
    if (lines.unknown.empty()) run.remarks.push_back(what);
  }
}

}  // namespace

ReadRun read_run_report(const RunSource& source, std::size_t points, const std::string& version) {
  ReadRun read{.report = {.folder = source.folder, .name = source.name}};
  auto& run = read.report;
  auto config = read_config(source.folder / "config.yaml");
  run.settings = merged_settings(source.settings, config.settings);
  run.facts.steps = config.number("train.steps").value_or(0);
  auto metrics = source.folder / "metrics.jsonl";
  std::error_code ignored;
  if (!fs::exists(metrics, ignored)) {
    run.state_name = to_string(run.state.phase);
    return read;
  }
  auto lines = read_run_lines(metrics);
  if (source.named && lines.headers.empty() && lines.steps.steps.empty() && !lines.unknown.empty()) {
    throw ConfigError(
        fmt::format("{} is no run: its metrics.jsonl has no line of one; expected a run's folder, such as "
                    "runs/quickstart, or a sweep's",
                    source.folder.string()));
  }
  read_state(run, lines);
  run.numbers = numbers_of(lines);
  add_speed(run.numbers, lines);
  run.facts = facts_of(lines, config);
  add_curves(run, lines, points);
  add_remarks(run, lines, config, version);
  read.line_offsets = std::move(lines.steps.offsets);
  return read;
}

}  // namespace meshard
