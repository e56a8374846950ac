#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "report/report.h"
#include "report/settings.h"

namespace meshard {

namespace {

std::string csv_number(std::optional<double> value) {
  if (!value) return "";
  return std::isfinite(*value) ? fmt::format("{}", *value) : "nan";
}

std::string csv_count(std::int64_t value) {
  return fmt::format("{}", value);
}

/// RFC 4180: what holds a comma, a quote or a line end stands in quotes, its quotes doubled.
std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

Settings csv_cells(const RunReport& run) {
  auto& state = run.state;
  auto& numbers = run.numbers;
  auto& facts = run.facts;
  return {{"run", run.name},
          {"folder", run.folder.string()},
          {"state", run.state_name},
          {"exit", state.exit ? csv_count(*state.exit) : ""},
          {"reason", state.reason},
          {"step", state.starts > 0 ? csv_count(state.step) : ""},
          {"steps", facts.steps > 0 ? csv_count(facts.steps) : ""},
          {"best_eval_loss", csv_number(numbers.best_eval_loss)},
          {"best_eval_step", numbers.best_eval_loss ? csv_count(numbers.best_eval_step) : ""},
          {"final_eval_loss", csv_number(numbers.final_eval_loss)},
          {"bits_per_byte", csv_number(numbers.bits_per_byte)},
          {"final_loss", csv_number(numbers.final_loss)},
          {"tokens_per_s", csv_number(numbers.tokens_per_s)},
          {"step_ms", csv_number(numbers.step_ms)},
          {"data_ms", csv_number(numbers.data_ms)},
          {"comm_ms", csv_number(numbers.comm_ms)},
          {"comm_busy_ms", csv_number(numbers.comm_busy_ms)},
          {"checkpoint_stall_ms", csv_number(numbers.stall_ms)},
          {"mem_peak_bytes", csv_number(numbers.mem_peak_bytes)},
          {"requeues", state.starts > 0 ? csv_count(state.starts - 1) : ""},
          {"time_in_steps_s", csv_number(numbers.step_time_s)},
          {"dropped_pairs", csv_number(numbers.dropped)},
          {"nonfinite_lines", csv_count(numbers.nonfinite_lines)},
          {"mesh", facts.mesh},
          {"hosts", facts.hosts},
          {"parameters", csv_number(facts.parameters)},
          {"active_parameters", csv_number(facts.active_parameters)},
          {"version", facts.version},
          {"remarks", fmt::format("{}", fmt::join(run.remarks, "; "))}};
}

std::string csv_line(const std::vector<std::string>& cells) {
  std::vector<std::string> quoted;
  for (auto& cell : cells) quoted.push_back(csv_text(cell));
  return fmt::format("{}\r\n", fmt::join(quoted, ","));
}

}  // namespace

std::string report_csv(const RunsReport& report) {
  std::vector<std::string> titles;
  for (auto& [title, cell] : csv_cells({})) titles.push_back(title);
  titles.insert(titles.end(), report.settings.begin(), report.settings.end());
  auto text = csv_line(titles);
  for (auto& run : report.runs) {
    std::vector<std::string> cells;
    for (auto& [title, cell] : csv_cells(run)) cells.push_back(cell);
    for (auto& key : report.settings) cells.push_back(setting_value(run.settings, key));
    text += csv_line(cells);
  }
  return text;
}

}  // namespace meshard
