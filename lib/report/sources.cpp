#include "report/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json_text.h"

namespace meshard {

namespace fs = std::filesystem;

namespace {

bool has_file(const fs::path& folder, const char* name) {
  std::error_code ignored;
  return fs::exists(folder / name, ignored);
}

bool is_sweep(const fs::path& folder) {
  return has_file(folder, "sweep.json");
}

bool is_run(const fs::path& folder) {
  return has_file(folder, "metrics.jsonl") || has_file(folder, "config.yaml");
}

std::string last_name(const fs::path& folder) {
  auto whole = fs::absolute(folder).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

std::vector<std::string> lines_of(const fs::path& file) {
  std::ifstream stream(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

/// Of each point, by name.
std::map<std::string, Settings> sweep_settings(const fs::path& folder) {
  std::map<std::string, Settings> points;
  try {
    auto sweep = read_json_file<nlohmann::ordered_json>(folder / "sweep.json");
    for (auto& point : sweep.at("points")) {
      auto& settings = points[point.at("name").get<std::string>()];
      for (auto& [key, value] : point.at("settings").items()) {
        settings.emplace_back(key, value.is_string() ? value.get<std::string>() : json_text(value));
      }
    }
  } catch (const std::exception& error) {
    throw ConfigError(fmt::format("{} is no list of a sweep's points: {}; run meshard sweep again, or name the runs",
                                  (folder / "sweep.json").string(), error.what()));
  }
  return points;
}

std::vector<RunSource> runs_of_sweep(const fs::path& folder) {
  auto settings = sweep_settings(folder);
  auto names = lines_of(folder / "points.txt");
  if (names.empty()) throw ConfigError(fmt::format("{} names no point", (folder / "points.txt").string()));
  std::vector<RunSource> runs;
  for (auto& name : names) runs.push_back({folder / name, name, settings[name]});
  return runs;
}

std::vector<RunSource> runs_in(const fs::path& folder, bool look_inside) {
  if (is_sweep(folder)) return runs_of_sweep(folder);
  if (is_run(folder)) return {{folder, last_name(folder), {}, look_inside}};
  std::vector<RunSource> runs;
  if (!look_inside) return runs;
  std::error_code failed;
  std::set<fs::path> children;
  for (auto& entry : fs::directory_iterator(folder, failed)) children.insert(entry.path());
  for (auto& child : children) {
    auto inside = runs_in(child, false);
    runs.insert(runs.end(), inside.begin(), inside.end());
  }
  if (!runs.empty()) return runs;
  throw ConfigError(fmt::format(
      "{}: {}; expected a run's folder, such as runs/quickstart, a sweep's, or one that holds some", folder.string(),
      failed ? failed.message()
             : "no run (metrics.jsonl or config.yaml) and no sweep (sweep.json) in it or right below"));
}

/// Names that stand twice become their folders.
void make_unique(std::vector<RunSource>& runs) {
  std::map<std::string, int> uses;
  for (auto& run : runs) ++uses[run.name];
  for (auto& run : runs) {
    if (uses[run.name] > 1) run.name = run.folder.lexically_normal().string();
  }
}

}  // namespace

std::vector<RunSource> find_runs(const std::vector<fs::path>& arguments) {
  std::vector<RunSource> runs;
  std::set<fs::path> known;
  for (auto& argument : arguments) {
    for (auto& run : runs_in(argument, true)) {
      if (known.insert(fs::weakly_canonical(run.folder)).second) runs.push_back(run);
    }
  }
  make_unique(runs);
  return runs;
}

}  // namespace meshard
