#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "base/hash.h"
#include "base/json_text.h"
#include "sweep/sweep.h"

namespace meshard {

namespace {

constexpr std::size_t kLongestName = 80;

std::string last_part(const std::string& key) {
  return key.substr(key.rfind('.') + 1);
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// In what stands for other characters one `_` is enough.
std::string file_name(const std::string& text) {
  std::string name;
  for (unsigned char c : text) {
    bool safe =
        c < 0x80 && (std::isalnum(c) || std::string_view("._+-").find(static_cast<char>(c)) != std::string_view::npos);
    if (safe) {
      name += static_cast<char>(c);
    } else if (!name.ends_with('_')) {
      name += '_';
    }
  }
  return name;
}

std::string value_name(const nlohmann::json& value) {
  if (value.is_string()) return file_name(value.get<std::string>());
  if (!value.is_array()) return file_name(json_text(value));
  std::string name;
  for (auto& item : value) name += (name.empty() ? "" : "+") + value_name(item);
  return name;
}

/// The last part of a key, or all of it where another key ends in the same.
std::map<std::string, std::string> key_names(const std::vector<SweepPoint>& points) {
  std::map<std::string, std::set<std::string>> by_last_part;
  for (auto& point : points) {
    for (auto& setting : point.settings) by_last_part[last_part(setting.key)].insert(setting.key);
  }
  std::map<std::string, std::string> names;
  for (auto& [last, keys] : by_last_part) {
    for (auto& key : keys) names[key] = keys.size() == 1 ? last : key;
  }
  return names;
}

std::string cut_with_hash(const std::string& name, const SweepPoint& point, int attempt) {
  auto hash = static_cast<std::uint32_t>(hash_text(json_text(point.object()) + std::string(attempt, '+')));
  return fmt::format("{}-{:08x}", name.substr(0, kLongestName - 9), hash);
}

}  // namespace

nlohmann::json SweepPoint::object() const {
  auto json = nlohmann::json::object();
  for (auto& setting : settings) json[setting.key] = setting.value;
  return json;
}

void name_points(std::vector<SweepPoint>& points, std::set<std::string> taken) {
  std::set<std::string> used;
  for (auto& name : taken) used.insert(lower_case(name));
  auto keys = key_names(points);
  for (auto& point : points) {
    if (!point.name.empty()) continue;
    std::string whole;
    for (auto& setting : point.settings) {
      whole += fmt::format("{}{}={}", whole.empty() ? "" : ",", keys.at(setting.key), value_name(setting.value));
    }
    if (whole.empty()) whole = "base";
    point.name = whole.size() > kLongestName ? cut_with_hash(whole, point, 0) : whole;
    for (int attempt = 0; !used.insert(lower_case(point.name)).second; ++attempt) {
      point.name = cut_with_hash(whole, point, attempt);
    }
  }
}

}  // namespace meshard
