#include "sweep/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "config/keys.h"
#include "config/words.h"
#include "sweep/parts.h"

namespace meshard {

namespace {

const std::vector<std::string_view> kSweepKeys = {"schema", "base", "grid", "zip", "list", "seeds"};

void check_sweep_keys(YamlNode& root, Report& report) {
  for (auto& child : root.children) {
    if (std::ranges::find(kSweepKeys, child.key) != kSweepKeys.end()) continue;
    auto hint = nearest_word(child.key, kSweepKeys);
    report.add(child.key_place, child.key,
               hint ? fmt::format("unknown key; did you mean `{}`?", *hint)
                    : fmt::format("unknown key; expected {}", fmt::join(kSweepKeys, ", ")));
  }
  auto need = [&](const char* name, const std::string& expected, auto check) {
    auto* node = root.find(name);
    if (!node) {
      report.add(root.place, name, "missing; expected " + expected);
    } else if (auto problem = check(*node)) {
      report.add(node->place, name, *problem);
    }
  };
  need("schema", "1", [](auto& node) {
    Config unused;
    return find_key("schema")->read(unused, node);
  });
  std::string base;
  need("base", "the path of a config", [&](auto& node) { return read_value(node, {}, base); });
}

std::vector<SweepPoint> product(const std::vector<SweepRows>& parts, const Place& place, Report& report) {
  std::vector<SweepPoint> points = {{}};
  for (auto& rows : parts) {
    if (points.size() * rows.size() > kMostSweepPoints) {
      report.add(place, "", fmt::format("has more than {} points; make several sweeps of it", kMostSweepPoints));
      break;
    }
    std::vector<SweepPoint> longer;
    for (auto& point : points) {
      for (auto& row : rows) {
        longer.push_back(point);
        auto& settings = longer.back().settings;
        settings.insert(settings.end(), row.begin(), row.end());
      }
    }
    points = std::move(longer);
  }
  return points;
}

nlohmann::ordered_json spec_json(YamlNode& root) {
  nlohmann::ordered_json spec;
  for (auto& name : kSweepKeys) {
    if (auto* node = root.find(std::string(name))) spec[std::string(name)] = yaml_json(*node);
  }
  return spec;
}

}  // namespace

Sweep parse_sweep(const std::string& text, const std::string& name) {
  Report report(name);
  auto root = parse_yaml(text, report);
  if (root.kind != YamlNode::Kind::Map) {
    if (report.clean({""}))
      report.add(root.place, "", "expected `schema: 1`, `base: FILE`, and grid, zip, list or seeds");
    report.throw_if_any();
  }
  check_sweep_keys(root, report);
  SweepParts reader(report);
  std::vector<SweepRows> parts;
  if (auto* part = root.find("grid")) parts.push_back(reader.grid(*part));
  if (auto* part = root.find("zip")) parts.push_back(reader.zip(*part));
  if (auto* part = root.find("list")) parts.push_back(reader.list(*part));
  if (auto* part = root.find("seeds")) parts.push_back(reader.seeds(*part));
  if (parts.empty()) report.add(root.place, "", "nothing to sweep; expected grid, zip, list or seeds");
  report.throw_if_any();
  Sweep sweep{name, root.find("base")->text, root.find("base")->place, spec_json(root), {}};
  sweep.points = product(parts, root.place, report);
  report.throw_if_any();
  name_points(sweep.points);
  return sweep;
}

Sweep load_sweep(const std::filesystem::path& file) {
  std::error_code failed;
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  if (!stream || std::filesystem::is_directory(file, failed)) {
    throw ConfigError(fmt::format("{} cannot be read ({}); expected the YAML file of a sweep", file.string(),
                                  stream ? "is a folder" : std::strerror(errno)));
  }
  text << stream.rdbuf();
  return parse_sweep(text.str(), file.string());
}

}  // namespace meshard
