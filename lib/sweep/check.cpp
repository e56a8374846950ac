#include "sweep/check.h"

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "config/keys.h"
#include "plan/plan.h"

namespace meshard {

namespace {

constexpr std::size_t kPointsNamed = 3;

/// Problems in the order in which they were met, each with the points that have it.
class PointProblems {
 public:
  void add(const std::string& line, const std::string& point) {
    auto [at, fresh] = index_.emplace(line, all_.size());
    if (fresh) all_.push_back({line, {}});
    all_[at->second].points.push_back(point);
  }

  void throw_if_any(const Sweep& sweep) const {
    if (all_.empty()) return;
    auto text = fmt::format("config error: {} problem{} in the {} points of {}", all_.size(),
                            all_.size() == 1 ? "" : "s", sweep.points.size(), sweep.file);
    for (auto& problem : all_) {
      text += fmt::format("\n  {}  ({})", problem.line, points_text(problem.points, sweep.points.size()));
    }
    throw ConfigError(text);
  }

 private:
  struct Problem {
    std::string line;
    std::vector<std::string> points;
  };

  static std::string points_text(const std::vector<std::string>& points, std::size_t all) {
    if (points.size() == all) return all == 1 ? "the only point" : "all points";
    std::string text = points.size() == 1 ? "point" : "points";
    for (std::size_t i = 0; i < std::min(points.size(), kPointsNamed); ++i) text += (i ? "; " : " ") + points[i];
    return points.size() > kPointsNamed ? fmt::format("{}; and {} more", text, points.size() - kPointsNamed) : text;
  }

  std::map<std::string, std::size_t> index_;
  std::vector<Problem> all_;
};

std::string text_of_base(const Sweep& sweep) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (!fs::is_regular_file(sweep.base, failed)) {
    Report report(sweep.file);
    report.add(sweep.base_place, "base",
               fmt::format("{} is no file: looked for {}; paths are relative to the working directory", sweep.base,
                           fs::absolute(sweep.base).string()));
    report.throw_if_any();
  }
  std::ostringstream text;
  text << std::ifstream(sweep.base, std::ios::binary).rdbuf();
  return text.str();
}

/// The mesh that the base asks for; what is wrong with it is told when the points are loaded.
ParallelConfig mesh_of_base(const std::string& text) {
  Report unused("");
  auto root = parse_yaml(text, unused);
  Config config;
  auto* section = root.find("parallel");
  for (auto key : {"dp_outer", "dp_shard"}) {
    auto* node = section ? section->find(key) : nullptr;
    if (node) find_key(std::string("parallel.") + key)->read(config, *node);
  }
  return config.parallel;
}

int ranks_of(const SweepPoint& point, ParallelConfig mesh) {
  for (auto& setting : point.settings) {
    if (setting.key == "parallel.dp_outer") mesh.dp_outer = setting.value.get<int>();
    if (setting.key == "parallel.dp_shard") mesh.dp_shard = setting.value.is_number() ? setting.value.get<int>() : 0;
  }
  constexpr std::int64_t kMostRanks = 1 << 24;
  auto ranks = std::int64_t{mesh.dp_outer} * mesh.dp_shard;
  return ranks >= 1 && ranks <= kMostRanks ? static_cast<int>(ranks) : 1;
}

/// A problem of a setting gets the setting's place in the sweep's file.
std::string placed(const std::string& line, const Sweep& sweep, const SweepPoint& point) {
  for (auto& setting : point.settings) {
    auto prefix = "--set " + setting.key + ": ";
    if (!line.starts_with(prefix)) continue;
    return fmt::format("{}:{}:{}  {}: {}", std::filesystem::path(sweep.file).filename().string(), setting.place.line,
                       setting.place.column, setting.key, line.substr(prefix.size()));
  }
  return line;
}

/// The lines below the first of a config error; all of any other error.
void add_lines(PointProblems& problems, const std::string& message, const Sweep& sweep, const SweepPoint& point) {
  auto begin = message.find("\n  ");
  if (begin == std::string::npos) return problems.add(message, point.name);
  while (begin != std::string::npos) {
    auto end = message.find("\n  ", begin + 3);
    problems.add(placed(message.substr(begin + 3, end - begin - 3), sweep, point), point.name);
    begin = end;
  }
}

/// Plans; points that differ only in what costs neither memory nor traffic share one plan.
class PointPlanner {
 public:
  struct Cost {
    std::int64_t parameters = 0, bytes_per_rank = 0;
  };

  const Cost& cost(const Config& config, int ranks) {
    auto plain = config;
    plain.run = {};
    plain.lr_schedule = {};
    plain.data = {};
    plain.checkpoint = {};
    plain.logging = {};
    plain.health = {};
    plain.comm = {};
    plain.optimizer = {.type = config.optimizer.type};
    plain.train.steps = 0;
    auto [known, fresh] = costs_.try_emplace({ranks, resolved_yaml(plain)});
    if (fresh) {
      auto plan = make_plan(config, ranks);
      known->second = {plan.parameters, plan.bytes.total()};
    }
    return known->second;
  }

 private:
  std::map<std::pair<int, std::string>, Cost> costs_;
};

}  // namespace

std::vector<CheckedPoint> check_sweep(const Sweep& sweep, const SweepLimits& limits) {
  auto base = text_of_base(sweep);
  auto mesh = mesh_of_base(base);
  std::vector<CheckedPoint> checked;
  PointProblems problems;
  PointPlanner planner;
  for (auto& point : sweep.points) {
    std::vector<std::string> overrides;
    for (auto& setting : point.settings) overrides.push_back(setting.key + "=" + setting.yaml);
    try {
      auto ranks = limits.ranks.value_or(ranks_of(point, mesh));
      auto config = parse_config(base, sweep.base, overrides, ranks);
      auto& cost = planner.cost(config, ranks);
      auto gigabytes = static_cast<double>(cost.bytes_per_rank) / 1e9;
      if (limits.memory_gb && gigabytes > *limits.memory_gb) {
        problems.add(fmt::format("needs {:.3g} GB per rank, above --memory-limit {}", gigabytes, *limits.memory_gb),
                     point.name);
      }
      checked.push_back({point, ranks, std::move(config), cost.parameters, cost.bytes_per_rank});
    } catch (const Error& error) {
      add_lines(problems, error.what(), sweep, point);
    }
  }
  problems.throw_if_any(sweep);
  return checked;
}

}  // namespace meshard
