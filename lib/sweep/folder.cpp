#include "sweep/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/hash.h"
#include "base/json_text.h"
#include "base/whole_file.h"

namespace meshard {

namespace fs = std::filesystem;

namespace {

constexpr auto kSweepLockPatience = std::chrono::seconds(1);
constexpr std::size_t kPointsTold = 3;

std::string whole_text(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

std::string some_of(const std::vector<std::string>& names) {
  auto told = std::vector(names.begin(), names.begin() + std::min(names.size(), kPointsTold));
  auto more = names.size() - told.size();
  return fmt::format("{}{}", fmt::join(told, "; "), more ? fmt::format("; and {} more", more) : "");
}

// A start that was killed before it wrote sweep.json leaves these.
void refuse_other_files(const fs::path& folder) {
  std::error_code failed;
  if (!fs::exists(folder, failed)) return;
  if (!fs::is_directory(folder)) throw ConfigError(fmt::format("--out {} is no folder", folder.string()));
  for (auto& entry : fs::directory_iterator(folder)) {
    auto name = entry.path().filename();
    if (name == "lock" || name == "sweep.json.partial") continue;
    throw ConfigError(
        fmt::format("--out {} holds {}, but no sweep.json: it is no sweep's; choose an empty or a new folder",
                    folder.string(), name.string()));
  }
}

SweepRecord record_of(const nlohmann::ordered_json& json) {
  SweepRecord record;
  if (json.at("schema") != 1) throw ConfigError(fmt::format("schema {} is not known", json_text(json.at("schema"))));
  if (!json.at("ranks_option").is_null()) record.ranks = json.at("ranks_option").get<int>();
  record.spec = json.at("spec");
  for (auto& point : json.at("points")) {
    record.points.push_back({point.at("name"), point.at("ranks"), nlohmann::json(point.at("settings"))});
  }
  return record;
}

using ValuesByKey = std::map<std::string, std::set<nlohmann::json>>;

void add_values(ValuesByKey& values, const nlohmann::json& settings) {
  for (auto& [key, value] : settings.items()) values[key].insert(value);
}

/// What the points in all no longer have, or have besides.
std::vector<std::string> key_changes(const ValuesByKey& before, const ValuesByKey& now) {
  std::vector<std::string> lines;
  for (auto& [key, values] : before) {
    if (!now.contains(key)) {
      lines.push_back(fmt::format("{}: is no longer swept", key));
      continue;
    }
    std::vector<std::string> gone;
    for (auto& value : values) {
      if (!now.at(key).contains(value)) gone.push_back(json_text(value));
    }
    if (!gone.empty()) lines.push_back(fmt::format("{}: no longer has {}", key, some_of(gone)));
  }
  for (auto& [key, values] : now) {
    if (!before.contains(key)) lines.push_back(fmt::format("{}: was not swept before", key));
  }
  return lines;
}

}  // namespace

std::optional<SweepRecord> read_sweep_record(const fs::path& folder) {
  auto file = folder / "sweep.json";
  std::error_code failed;
  if (!fs::exists(file, failed)) {
    refuse_other_files(folder);
    return {};
  }
  try {
    return record_of(read_json_file<nlohmann::ordered_json>(file));
  } catch (const std::exception& error) {
    throw ConfigError(
        fmt::format("{} is not what `meshard sweep` writes: {}; choose another --out", file.string(), error.what()));
  }
}

void adopt_record(Sweep& sweep, const SweepRecord& record, const fs::path& folder) {
  std::map<nlohmann::json, SweepPoint*> points;
  ValuesByKey before, now;
  for (auto& point : sweep.points) {
    point.name.clear();
    points[point.object()] = &point;
    add_values(now, point.object());
  }
  std::vector<SweepPoint> ordered;
  std::vector<std::string> gone;
  std::set<std::string> taken;
  for (auto& old : record.points) {
    add_values(before, old.settings);
    taken.insert(old.name);
    auto found = points.find(old.settings);
    if (found == points.end()) {
      gone.push_back(old.name);
      continue;
    }
    found->second->name = old.name;
    ordered.push_back(*found->second);
  }
  if (!gone.empty()) {
    auto lines = key_changes(before, now);
    lines.push_back("points: " + some_of(gone));
    throw ConfigError(
        fmt::format("{} no longer has {} of the {} points of {}; points may be added, not taken away: choose another "
                    "--out, or put them back\n  {}",
                    sweep.file, gone.size(), record.points.size(), folder.string(), fmt::join(lines, "\n  ")));
  }
  for (auto& point : sweep.points) {
    if (point.name.empty()) ordered.push_back(point);
  }
  sweep.points = std::move(ordered);
  name_points(sweep.points, std::move(taken));
}

void check_unchanged(const std::vector<CheckedPoint>& points, const fs::path& folder) {
  std::vector<std::pair<std::string, std::vector<std::string>>> changes;
  auto add = [&](const std::string& line, const std::string& point) {
    auto found = std::ranges::find(changes, line, [](auto& change) { return change.first; });
    if (found == changes.end()) found = changes.insert(changes.end(), {line, {}});
    found->second.push_back(point);
  };
  for (auto& [point, ranks, config, parameters, bytes] : points) {
    auto file = folder / point.name / "point.yaml";
    std::error_code failed;
    if (!fs::exists(file, failed)) continue;
    auto text = whole_text(file);
    if (text == resolved_yaml(config)) continue;
    for (auto& change : config_changes(parse_config(text, file.string(), {}, ranks), config)) {
      add(fmt::format("{}: {} there, {} now", change.key, change.from, change.to), point.name);
    }
  }
  if (changes.empty()) return;
  std::string text;
  for (auto& [line, names] : changes) {
    text +=
        fmt::format("\n  {}  ({})", line, names.size() == points.size() ? "all points" : "points " + some_of(names));
  }
  throw ConfigError(
      fmt::format("the points of {} were set up from another base config: choose another --out, or put back what "
                  "changed{}",
                  folder.string(), text));
}

std::string index_ranges(const std::vector<int>& indices) {
  std::string text;
  for (std::size_t i = 0; i < indices.size();) {
    auto begin = i;
    while (++i < indices.size() && indices[i] == indices[i - 1] + 1) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ",", indices[begin]);
    if (i - begin > 1) text += fmt::format("-{}", indices[i - 1]);
  }
  return text;
}

std::vector<int> indices_of(const std::string& ranges) {
  std::vector<int> indices;
  const char *at = ranges.data(), *end = at + ranges.size();
  auto number = [&] {
    int value = 0;
    auto [rest, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || value < 0) throw IoError(fmt::format("`{}` is no list of indices", ranges));
    at = rest;
    return value;
  };
  for (bool more = true; more;) {
    int first = number(), last = first;
    if (at != end && *at == '-') ++at, last = number();
    for (int index = first; index <= last; ++index) indices.push_back(index);
    more = at != end;
    if (more && *at++ != ',') throw IoError(fmt::format("`{}` is no list of indices", ranges));
  }
  return indices;
}

std::vector<SweepJob> submitted_jobs(const fs::path& folder) {
  std::vector<SweepJob> jobs;
  std::error_code failed;
  if (fs::exists(folder / "jobs.txt", failed) && !fs::is_regular_file(folder / "jobs.txt", failed)) {
    throw ConfigError(fmt::format("{} is no regular file; move it away", (folder / "jobs.txt").string()));
  }
  std::ifstream file(folder / "jobs.txt");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    SweepJob job;
    std::string ranges;
    if (!(words >> job.system >> job.id >> ranges)) {
      throw IoError(fmt::format("{}: `{}` is no line of a submitted job; expected SYSTEM ID INDICES",
                                (folder / "jobs.txt").string(), line));
    }
    job.indices = indices_of(ranges);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

SweepFolder::SweepFolder(fs::path path) : path_(std::move(path)) {
  std::error_code failed;
  made_ = fs::create_directories(path_, failed);
  if (failed) throw ConfigError(fmt::format("cannot make --out {}: {}", path_.string(), failed.message()));
  lock_.emplace(path_, FolderLock::Words{"sweep folder", "choose another --out"}, kSweepLockPatience);
}

SweepFolder::~SweepFolder() {
  lock_.reset();
  std::error_code not_empty;
  if (made_) fs::remove(path_, not_empty);
}

void SweepFolder::write(const Sweep& sweep, const std::vector<CheckedPoint>& points, std::optional<int> ranks) const {
  nlohmann::ordered_json json{{"schema", 1},
                              {"file", sweep.file},
                              {"spec", sweep.spec},
                              {"hash", fmt::format("{:016x}", hash_text(json_text(sweep.spec)))},
                              {"ranks", std::ranges::max(points, {}, &CheckedPoint::ranks).ranks},
                              {"ranks_option", ranks ? nlohmann::ordered_json(*ranks) : nullptr},
                              {"points", nlohmann::ordered_json::array()}};
  std::string names;
  for (auto& [point, point_ranks, config, parameters, bytes] : points) {
    nlohmann::ordered_json settings = nlohmann::ordered_json::object();
    for (auto& setting : point.settings) settings[setting.key] = setting.value;
    json["points"].push_back({{"name", point.name}, {"ranks", point_ranks}, {"settings", settings}});
    names += point.name + "\n";
  }
  write_whole_file(path_ / "sweep.json", json_text(json, 1) + "\n");
  write_whole_file(path_ / "points.txt", names);
  for (auto& [point, point_ranks, config, parameters, bytes] : points) {
    auto file = path_ / point.name / "point.yaml";
    std::error_code failed;
    if (fs::exists(file, failed)) continue;
    fs::create_directories(file.parent_path(), failed);
    if (failed) throw IoError(fmt::format("cannot make {}: {}", file.parent_path().string(), failed.message()));
    write_whole_file(file, resolved_yaml(config));
  }
}

void SweepFolder::add_job(const SweepJob& job) const {
  std::ofstream file(path_ / "jobs.txt", std::ios::app);
  file << job.system << ' ' << job.id << ' ' << index_ranges(job.indices) << std::endl;
  if (!file) {
    throw IoError(
        fmt::format("cannot write {}: add the line `{} {} {}` to it by hand, or these points are submitted "
                    "again by the next start",
                    (path_ / "jobs.txt").string(), job.system, job.id, index_ranges(job.indices)));
  }
}

}  // namespace meshard
