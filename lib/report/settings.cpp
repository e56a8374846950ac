#include "report/settings.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

namespace meshard {

namespace {

void flatten(const YAML::Node& node, const std::string& key, Settings& settings) {
  if (node.IsMap()) {
    for (auto& member : node) {
      auto name = member.first.Scalar();
      flatten(member.second, key.empty() ? name : key + "." + name, settings);
    }
  } else if (node.IsSequence()) {
    YAML::Emitter flow;
    flow << YAML::Flow << node;
    settings.emplace_back(key, flow.c_str());
  } else {
    settings.emplace_back(key, node.IsNull() ? "null" : node.Scalar());
  }
}

constexpr std::array<std::string_view, 12> kResultTitles = {
    "run", "state", "steps", "held-out", "at", "last", "bpb", "loss", "tok/s", "memory", "requeues", "in steps"};

bool ends_in(std::string_view key, std::string_view ending) {
  return key == ending || (key.ends_with(ending) && key[key.size() - ending.size() - 1] == '.');
}

std::string plain_value(const std::string& text) {
  double value = 0.0;
  auto end = text.data() + text.size();
  auto [stop, failed] = std::from_chars(text.data(), end, value);
  bool fraction = text.find_first_of(".eE") != std::string::npos;
  return failed == std::errc{} && stop == end && fraction ? fmt::format("{}", value) : text;
}

}  // namespace

std::optional<std::int64_t> LooseConfig::number(const std::string& key) const {
  auto text = setting_value(settings, key);
  std::int64_t value = 0;
  auto [stop, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool whole = failed == std::errc{} && stop == text.data() + text.size();
  return whole ? std::optional(value) : std::nullopt;
}

LooseConfig read_config(const std::filesystem::path& file) {
  LooseConfig config;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return {.problem = "there is no config.yaml"};
  try {
    auto root = YAML::LoadFile(file.string());
    if (!root.IsMap()) return {.problem = "config.yaml is no config"};
    flatten(root, "", config.settings);
  } catch (const YAML::Exception& error) {
    return {.problem = fmt::format("config.yaml cannot be read: {}", error.what())};
  }
  return config;
}

Settings merged_settings(const Settings& sweep, const Settings& config) {
  Settings merged;
  std::set<std::string> known;
  auto of_config = [&](const std::string& key, const std::string& otherwise) {
    auto found = std::ranges::find(config, key, &Settings::value_type::first);
    return found == config.end() ? otherwise : found->second;
  };
  for (auto& [key, value] : sweep) {
    if (known.insert(key).second) merged.emplace_back(key, plain_value(of_config(key, value)));
  }
  for (auto& [key, value] : config) {
    if (known.insert(key).second) merged.emplace_back(key, plain_value(value));
  }
  return merged;
}

std::vector<std::string> differing_keys(const std::vector<RunReport>& runs) {
  std::vector<std::string> keys;
  std::map<std::string, std::set<std::string>> values;
  for (auto& run : runs) {
    for (auto& [key, value] : run.settings) {
      if (!values.contains(key)) keys.push_back(key);
      values[key].insert(value);
    }
  }
  std::erase_if(keys, [&](auto& key) { return values[key].size() < 2 || key == "run.name" || key == "run.dir"; });
  return keys;
}

std::vector<std::string> setting_titles(const std::vector<std::string>& keys) {
  std::vector<std::string> titles;
  for (auto& key : keys) {
    auto is_taken = [&](const std::string& title) {
      return std::ranges::find(kResultTitles, title) != kResultTitles.end() ||
             std::ranges::count_if(keys, [&](auto& other) { return ends_in(other, title); }) > 1;
    };
    auto title = key;
    for (auto dot = key.find('.'); dot != std::string::npos && !is_taken(key.substr(dot + 1));
         dot = key.find('.', dot + 1)) {
      title = key.substr(dot + 1);
    }
    titles.push_back(title);
  }
  return titles;
}

std::string setting_value(const Settings& settings, const std::string& key) {
  auto found = std::ranges::find(settings, key, &Settings::value_type::first);
  return found == settings.end() ? "" : found->second;
}

}  // namespace meshard
