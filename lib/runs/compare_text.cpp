#include <fmt/format.h>

#include <algorithm>

#include "runs/compare.h"

namespace meshard {

namespace {

constexpr std::size_t kMostRows = 25;
constexpr std::size_t kLongestValue = 60;

/// One metric over all steps.
struct MetricRow {
  std::string metric;
  std::int64_t first_step = 0, last_step = 0, steps = 0;
  std::optional<double> largest;
  const Difference* where = nullptr;  ///< of the largest; the first if none has one
};

/// "4 ranks = dp_outer 2 x dp_shard 2, expert 1, hsdp", once more for each start on another mesh.
std::string start_text(const RunMetrics& run) {
  std::vector<std::string> starts;
  for (auto& header : run.headers) {
    auto text = mesh_of_header(header);
    if (starts.empty() || starts.back() != text) starts.push_back(text);
  }
  std::string text;
  for (auto& start : starts) text += (text.empty() ? "" : "; then ") + start;
  return text.empty() ? "no header" : text;
}

std::string run_text(const char* name, const RunMetrics& run, std::size_t width) {
  auto text = fmt::format("{}  {:<{}}  {}", name, run.folder.string(), width, start_text(run));
  if (!run.fault().empty()) text += fmt::format("; fault {}", run.fault());
  if (run.torn) text += "; its last line is cut off";
  return text + "\n";
}

std::string model_hash(const RunMetrics& run) {
  return run.headers.empty() ? "" : run.headers.front().value("model_hash", "");
}

std::string start_difference(const RunMetrics& a, const RunMetrics& b) {
  auto hash_a = model_hash(a), hash_b = model_hash(b);
  if (hash_a.empty() || hash_b.empty() || hash_a == hash_b) return "";
  return fmt::format("the models started differently: model_hash {} against {}\n", hash_a, hash_b);
}

std::string count_text(const std::vector<std::int64_t>& steps, const char* what) {
  if (steps.empty()) return "";
  if (steps.size() == 1) return fmt::format("{} {}", what, steps.front());
  return fmt::format("{}s {} to {} ({} of them)", what, steps.front(), steps.back(), steps.size());
}

std::string only_text(const char* name, const RunMetrics& run, const RunMetrics& other,
                      const std::vector<std::int64_t>& only) {
  std::vector<std::int64_t> steps, evals;
  for (auto step : only) (run.steps.contains(step) && !other.steps.contains(step) ? steps : evals).push_back(step);
  std::string text;
  for (auto& part : {count_text(steps, "step"), count_text(evals, "evaluation")}) {
    if (!part.empty()) text += fmt::format("only in {}: {}\n", name, part);
  }
  return text;
}

std::string clipped(const std::string& value) {
  return value.size() <= kLongestValue ? value : value.substr(0, kLongestValue) + "...";
}

std::string first_difference(const Difference& first) {
  auto text = fmt::format("first difference: step {}, {}{}{}: {} against {}", first.step, first.metric,
                          first.where.empty() ? "" : ", ", first.where, clipped(first.a), clipped(first.b));
  if (first.relative) text += fmt::format(" (relative {:.1e})", *first.relative);
  return text + "\n";
}

/// In the order in which they begin to differ.
std::vector<MetricRow> rows_of(const std::vector<Difference>& differences) {
  std::vector<MetricRow> rows;
  for (auto& difference : differences) {
    auto row = std::ranges::find(rows, difference.metric, &MetricRow::metric);
    if (row == rows.end()) row = rows.insert(row, MetricRow{difference.metric, difference.step, 0, 0, {}, &difference});
    if (row->steps == 0 || row->last_step != difference.step) ++row->steps;
    row->last_step = difference.step;
    if (difference.relative > row->largest) {
      row->largest = difference.relative;
      row->where = &difference;
    }
  }
  return rows;
}

std::string table_text(const std::vector<Difference>& differences) {
  auto rows = rows_of(differences);
  std::size_t width = 6;
  for (auto& row : rows) width = std::max(width, row.metric.size());
  auto text = fmt::format("\n{:<{}}  first step  steps  largest  where\n", "metric", width);
  for (std::size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) {
    auto& [metric, first_step, last_step, steps, largest, where] = rows[i];
    text += fmt::format("{:<{}}  {:>10}  {:>5}  {:>7}  step {}{}{}\n", metric, width, first_step, steps,
                        largest ? fmt::format("{:.1e}", *largest) : "-", where->step, where->where.empty() ? "" : ", ",
                        where->where);
  }
  if (rows.size() > kMostRows) text += fmt::format("and {} more\n", rows.size() - kMostRows);
  return text;
}

}  // namespace

std::string comparison_text(const RunMetrics& a, const RunMetrics& b, const Comparison& comparison) {
  auto width = std::max(a.folder.string().size(), b.folder.string().size());
  auto text = run_text("a", a, width) + run_text("b", b, width) + start_difference(a, b);
  text += fmt::format("{} step{} compared\n", comparison.steps, comparison.steps == 1 ? "" : "s");
  text += only_text("a", a, b, comparison.only_a) + only_text("b", b, a, comparison.only_b);
  if (comparison.differences.empty()) return text + (comparison.same() ? "same\n" : "same where both have a step\n");
  return text + first_difference(comparison.differences.front()) + table_text(comparison.differences);
}

}  // namespace meshard
