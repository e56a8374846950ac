#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "report/report.h"
#include "report/settings.h"

namespace meshard {

namespace {

constexpr std::size_t kShortestName = 24, kLongestName = 48, kMostNames = 3, kMostValues = 8, kLongestSetting = 60,
                      kWidestSetting = 24;
constexpr const char* kNothing = "-";

/// Characters, not bytes: a byte that begins with 10 goes on with the one before.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

/// The middle goes: names of a sweep's points differ at either end.
std::string shortened(const std::string& text, std::size_t width) {
  if (width_of(text) <= width) return text;
  auto prefix_of = [&](std::size_t characters) {
    std::size_t end = 0;
    for (std::size_t seen = 0; end < text.size(); ++end) {
      bool begins = (text[end] & 0xC0) != 0x80;
      if (begins && seen++ == characters) break;
    }
    return end;
  };
  auto head = (width - 2) / 2, tail = width - 2 - head;
  return text.substr(0, prefix_of(head)) + ".." + text.substr(prefix_of(width_of(text) - tail));
}

std::string loss_text(std::optional<double> loss) {
  if (!loss) return kNothing;
  if (!std::isfinite(*loss)) return "nan";
  return *loss < 1e4 ? fmt::format("{:.4f}", *loss) : fmt::format("{:.2e}", *loss);
}

std::string rate_cell(std::optional<double> count) {
  if (!count) return kNothing;
  if (*count < 1e4) return fmt::format("{:.0f}", *count);
  return *count < 1e6 ? fmt::format("{:.1f}k", *count / 1e3) : fmt::format("{:.2f}M", *count / 1e6);
}

std::string memory_text(std::optional<double> bytes) {
  if (!bytes) return kNothing;
  return *bytes < 1e9 ? fmt::format("{:.0f} MB", *bytes / 1e6) : fmt::format("{:.1f} GB", *bytes / 1e9);
}

std::string duration_text(std::optional<double> seconds) {
  if (!seconds) return kNothing;
  auto whole = std::llround(*seconds);
  return whole < 3600 ? fmt::format("{}:{:02}", whole / 60, whole % 60)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string steps_text(const RunReport& run) {
  if (run.state.starts == 0) return kNothing;
  return run.facts.steps > 0 ? fmt::format("{}/{}", run.state.step, run.facts.steps)
                             : fmt::format("{}", run.state.step);
}

/// "failed 70"; the codes of the other states are theirs alone.
std::string state_text(const RunReport& run) {
  bool failed = run.state.phase == RunPhase::Failed && run.state.exit;
  return failed ? fmt::format("{} {}", run.state_name, *run.state.exit) : run.state_name;
}

std::string bits_text(const RunReport& run) {
  auto& bits = run.numbers.bits_per_byte;
  return bits && std::isfinite(*bits) ? fmt::format("{:.3f}", *bits) : kNothing;
}

struct Result {
  const char* title;
  int importance;  ///< the least important goes first where the table is too wide
  bool left;
  std::string (*text)(const RunReport&);
};

const std::vector<Result>& results() {
  static const std::vector<Result> all = {
      {"run", 99, true, [](const RunReport& run) { return on_one_line(run.name); }},
      {"state", 98, true, state_text},
      {"steps", 9, false, steps_text},
      {"held-out", 97, false, [](const RunReport& run) { return loss_text(run.numbers.best_eval_loss); }},
      {"at", 8, false,
       [](const RunReport& run) {
         return run.numbers.best_eval_loss ? fmt::format("{}", run.numbers.best_eval_step) : std::string(kNothing);
       }},
      {"last", 4, false, [](const RunReport& run) { return loss_text(run.numbers.final_eval_loss); }},
      {"bpb", 3, false, bits_text},
      {"loss", 96, false, [](const RunReport& run) { return loss_text(run.numbers.final_loss); }},
      {"tok/s", 10, false, [](const RunReport& run) { return rate_cell(run.numbers.tokens_per_s); }},
      {"memory", 6, false, [](const RunReport& run) { return memory_text(run.numbers.mem_peak_bytes); }},
      {"requeues", 2, false,
       [](const RunReport& run) {
         return run.state.starts > 0 ? fmt::format("{}", run.state.starts - 1) : std::string(kNothing);
       }},
      {"in steps", 1, false, [](const RunReport& run) { return duration_text(run.numbers.step_time_s); }},
  };
  return all;
}

struct TableColumn {
  std::vector<std::string> cells;  ///< title, runs...
  int importance = 0;
  bool left = false;
  std::size_t width = 0;

  bool says_something() const {
    return std::any_of(cells.begin() + 1, cells.end(), [](auto& cell) { return cell != kNothing; });
  }
};

using TableColumns = std::vector<TableColumn>;

std::size_t width_of(const TableColumns& columns) {
  std::size_t sum = 2 * (columns.size() - 1);
  for (auto& column : columns) sum += column.width;
  return sum;
}

template <typename Text>
TableColumn column_of(const RunsReport& report, const std::string& title, Text text) {
  TableColumn column{.cells = {title}};
  for (auto& run : report.runs) column.cells.push_back(text(run));
  for (auto& cell : column.cells) column.width = std::max(column.width, width_of(cell));
  return column;
}

TableColumns result_columns(const RunsReport& report) {
  TableColumns columns;
  for (auto& result : results()) {
    auto column = column_of(report, result.title, result.text);
    column.importance = result.importance;
    column.left = result.left;
    if (column.says_something()) columns.push_back(std::move(column));
  }
  return columns;
}

/// Leaves those results that fit into `limit`; the names give way first, down to what is readable.
void fit_results(TableColumns& columns, std::size_t limit) {
  auto& name = columns[0];
  auto wanted_name = std::min(name.width, kLongestName);
  name.width = std::min(wanted_name, kShortestName);
  while (width_of(columns) > limit && columns.size() > 4) {
    columns.erase(std::ranges::min_element(columns, {}, &TableColumn::importance));
  }
  auto width = width_of(columns);
  if (width <= limit) columns[0].width = std::min(wanted_name, columns[0].width + limit - width);
}

/// Those settings for which there is room. Long values stand below the table.
void add_settings(const RunsReport& report, std::size_t limit, TableColumns& columns) {
  auto titles = setting_titles(report.settings);
  for (std::size_t i = 0; i < titles.size(); ++i) {
    auto column = column_of(report, on_one_line(titles[i]), [&](const RunReport& run) {
      auto value = setting_value(run.settings, report.settings[i]);
      return value.empty() ? kNothing : on_one_line(value);
    });
    bool fits = column.width <= kWidestSetting && width_of(columns) + 2 + column.width <= limit;
    if (fits) columns.push_back(std::move(column));
  }
}

std::string table_rows(const TableColumns& columns) {
  std::string text;
  for (std::size_t row = 0; row < columns[0].cells.size(); ++row) {
    std::string line;
    for (auto& column : columns) {
      auto cell = shortened(column.cells[row], column.width);
      std::string padding(column.width - width_of(cell), ' ');
      line += (&column == &columns[0] ? "" : "  ") + (column.left ? cell + padding : padding + cell);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

/// Runs of which the same is to be said stand together.
std::string remark_lines(const RunsReport& report) {
  std::vector<std::pair<std::string, std::vector<std::string>>> remarks;
  for (auto& run : report.runs) {
    if (run.remarks.empty()) continue;
    auto text = on_one_line(fmt::format("{}", fmt::join(run.remarks, "; ")));
    auto same = std::ranges::find(remarks, text, [](auto& remark) { return remark.first; });
    if (same == remarks.end()) same = remarks.insert(same, {text, {}});
    same->second.push_back(on_one_line(run.name));
  }
  std::string text = remarks.empty() ? "" : "\nremarks\n";
  for (auto& [remark, names] : remarks) {
    auto more = names.size() > kMostNames ? fmt::format(" and {} more", names.size() - kMostNames) : "";
    names.resize(std::min(names.size(), kMostNames));
    text += fmt::format("  {}{}: {}\n", fmt::join(names, "; "), more, remark);
  }
  return text;
}

/// Every value of a key once, in the order of the table.
std::string setting_lines(const RunsReport& report) {
  std::string text;
  std::size_t width = 0;
  for (auto& key : report.settings) width = std::max(width, width_of(on_one_line(key)));
  for (auto& key : report.settings) {
    std::vector<std::string> values;
    for (auto& run : report.runs) {
      auto value = shortened(on_one_line(setting_value(run.settings, key)), kLongestSetting);
      if (!value.empty() && std::ranges::find(values, value) == values.end()) values.push_back(value);
    }
    auto more = values.size() > kMostValues ? fmt::format(" and {} more", values.size() - kMostValues) : "";
    values.resize(std::min(values.size(), kMostValues));
    text += fmt::format("  {:<{}}  {}{}\n", on_one_line(key), width, fmt::join(values, ", "), more);
  }
  return text.empty() ? "" : "\nsettings that differ, values from the best run to the worst\n" + text;
}

}  // namespace

std::string report_table(const RunsReport& report, int width) {
  auto limit = static_cast<std::size_t>(std::max(width, 0));
  auto columns = result_columns(report);
  auto results = columns.size();
  fit_results(columns, limit);
  if (columns.size() == results) add_settings(report, limit, columns);
  return table_rows(columns) + remark_lines(report) + setting_lines(report);
}

}  // namespace meshard
