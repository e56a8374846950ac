#include "sweep/status.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/keys.h"
#include "plan/plan.h"

namespace meshard {

namespace {

using TableRow = std::vector<std::string>;

/// The first and the last column to the left, the others to the right.
std::string aligned_table(const std::vector<TableRow>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (auto& row : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      text += i == 0 ? fmt::format("{:<{}}  ", row[i], widths[i]) : fmt::format("{:>{}}  ", row[i], widths[i]);
    }
    text += row.back() + "\n";
  }
  return text;
}

/// Every key that some point changes, in the order in which they come up.
std::vector<std::string> keys_changed(const std::vector<CheckedPoint>& points) {
  std::vector<std::string> keys;
  for (auto& point : points) {
    for (auto& setting : point.point.settings) {
      if (std::ranges::find(keys, setting.key) == keys.end()) keys.push_back(setting.key);
    }
  }
  return keys;
}

/// The base's where the point does not change it.
std::string value_of(const CheckedPoint& point, const std::string& key) {
  auto setting = std::ranges::find(point.point.settings, key, &SweepSetting::key);
  if (setting != point.point.settings.end()) return setting->yaml;
  return find_key(key)->write(point.config).value_or("-");
}

}  // namespace

std::string PointStatus::text() const {
  if (done()) return "done";
  if (holder) return "running: " + holder->text;
  if (array_job) return "in " + *array_job;
  if (!problem.empty()) return "failed: " + problem;
  if (run.phase == RunPhase::Failed) return fmt::format("failed (exit {})", *run.exit);
  return to_string(run.phase);
}

PointStatus point_status(const std::filesystem::path& run_folder) {
  PointStatus status;
  try {
    status.run = run_state(run_folder);
  } catch (const IoError& error) {
    status.run.phase = RunPhase::Failed;
    status.problem = error.what();
  }
  status.holder = FolderLock::holder(run_folder);
  return status;
}

std::string points_table(const std::vector<CheckedPoint>& points, const std::vector<PointStatus>& statuses) {
  auto keys = keys_changed(points);
  TableRow head = {"point"};
  head.insert(head.end(), keys.begin(), keys.end());
  for (auto name : {"ranks", "parameters", "GB per rank", "state"}) head.push_back(name);
  std::vector<TableRow> rows = {head};
  for (std::size_t i = 0; i < points.size(); ++i) {
    auto& [point, ranks, config, parameters, bytes] = points[i];
    auto& row = rows.emplace_back(TableRow{point.name});
    for (auto& key : keys) row.push_back(value_of(points[i], key));
    row.push_back(std::to_string(ranks));
    row.push_back(human_count(parameters));
    row.push_back(fmt::format("{:.3g}", static_cast<double>(bytes) / 1e9));
    row.push_back(statuses[i].text());
  }
  return aligned_table(rows);
}

std::string summary_table(const std::vector<CheckedPoint>& points, const std::vector<PointStatus>& statuses) {
  std::vector<TableRow> rows = {{"point", "exit", "step", "starts", "state"}};
  for (std::size_t i = 0; i < points.size(); ++i) {
    auto& run = statuses[i].run;
    rows.push_back({points[i].point.name, run.exit ? std::to_string(*run.exit) : "-",
                    fmt::format("{}/{}", run.step, points[i].config.train.steps), std::to_string(run.starts),
                    statuses[i].text()});
  }
  return aligned_table(rows);
}

}  // namespace meshard
