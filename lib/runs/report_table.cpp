#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "runs/report.h"
#include "runs/report_settings.h"

namespace meshard {

namespace {

constexpr std::size_t kShortestName = 24, kLongestName = 48, kMostNames = 3, kMostValues = 8, kLongestSetting = 60;
constexpr const char* kNothing = "-";

/// Characters, not bytes: a byte that begins with 10 goes on with the one before.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

/// Without what would move the cursor or colour the terminal.
std::string printable(std::string text) {
  for (auto& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
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

struct TableColumn {
  const char* title;
  int importance;  ///< the least important goes first where the table is too wide
  bool left;
  std::string (*text)(const RunReport&);
};

const std::vector<TableColumn>& table_columns() {
  static const std::vector<TableColumn> columns = {
      {"run", 99, true, [](const RunReport& run) { return printable(run.name); }},
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
  return columns;
}

struct TableShape {
  std::vector<const TableColumn*> columns;
  std::vector<std::vector<std::string>> cells;  ///< [column][title, runs...]
  std::vector<std::size_t> widths;

  std::size_t width() const {
    std::size_t sum = 2 * (columns.size() - 1);
    for (auto column : widths) sum += column;
    return sum;
  }
};

/// All columns that fit into `limit`; the names give way first, down to what is readable.
TableShape shape_table(const RunsReport& report, std::size_t limit) {
  TableShape shape;
  for (auto& column : table_columns()) {
    std::vector<std::string> cells{column.title};
    for (auto& run : report.runs) cells.push_back(column.text(run));
    std::size_t width = 0;
    for (auto& cell : cells) width = std::max(width, width_of(cell));
    bool says_something =
        std::ranges::any_of(cells.begin() + 1, cells.end(), [](auto& cell) { return cell != kNothing; });
    if (!says_something) continue;
    shape.columns.push_back(&column);
    shape.cells.push_back(std::move(cells));
    shape.widths.push_back(width);
  }
  auto wanted_name = std::min(shape.widths[0], kLongestName);
  auto fits = [&] { return shape.width() <= limit; };
  shape.widths[0] = std::min(wanted_name, kShortestName);
  while (!fits() && shape.columns.size() > 4) {
    auto least = std::ranges::min_element(shape.columns, {}, &TableColumn::importance) - shape.columns.begin();
    shape.columns.erase(shape.columns.begin() + least);
    shape.cells.erase(shape.cells.begin() + least);
    shape.widths.erase(shape.widths.begin() + least);
  }
  if (fits()) shape.widths[0] = std::min(wanted_name, shape.widths[0] + limit - shape.width());
  return shape;
}

std::string table_rows(const TableShape& shape) {
  std::string text;
  for (std::size_t row = 0; row < shape.cells[0].size(); ++row) {
    std::string line;
    for (std::size_t i = 0; i < shape.columns.size(); ++i) {
      auto cell = shortened(shape.cells[i][row], shape.widths[i]);
      std::string padding(shape.widths[i] - width_of(cell), ' ');
      line += (i > 0 ? "  " : "") + (shape.columns[i]->left ? cell + padding : padding + cell);
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
    auto text = printable(fmt::format("{}", fmt::join(run.remarks, "; ")));
    auto same = std::ranges::find(remarks, text, [](auto& remark) { return remark.first; });
    if (same == remarks.end()) same = remarks.insert(same, {text, {}});
    same->second.push_back(printable(run.name));
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
  for (auto& key : report.settings) width = std::max(width, key.size());
  for (auto& key : report.settings) {
    std::vector<std::string> values;
    for (auto& run : report.runs) {
      auto value = shortened(printable(setting_value(run.settings, key)), kLongestSetting);
      if (!value.empty() && std::ranges::find(values, value) == values.end()) values.push_back(value);
    }
    auto more = values.size() > kMostValues ? fmt::format(" and {} more", values.size() - kMostValues) : "";
    values.resize(std::min(values.size(), kMostValues));
    text += fmt::format("  {:<{}}  {}{}\n", printable(key), width, fmt::join(values, ", "), more);
  }
  return text.empty() ? "" : "\nsettings that differ, values from the best run to the worst\n" + text;
}

}  // namespace

std::string report_table(const RunsReport& report, int width) {
  auto shape = shape_table(report, static_cast<std::size_t>(std::max(width, 0)));
  return table_rows(shape) + remark_lines(report) + setting_lines(report);
}

}  // namespace meshard
