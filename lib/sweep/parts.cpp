#include "sweep/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/json_text.h"
#include "config/keys.h"

namespace meshard {

namespace {

std::string flow_text(const YamlNode& node) {
  std::string text;
  auto add = [&](const std::string& item) { text += (text.empty() ? "" : ", ") + item; };
  switch (node.kind) {
    case YamlNode::Kind::Null:
      return "null";
    case YamlNode::Kind::Scalar:
      return node.quoted ? json_text(nlohmann::json(node.text)) : node.text;
    case YamlNode::Kind::List:
      for (auto& child : node.children) add(flow_text(child));
      return "[" + text + "]";
    case YamlNode::Kind::Map:
      for (auto& child : node.children) add(child.key + ": " + flow_text(child));
      break;
  }
  return "{" + text + "}";
}

bool is_fixed(const std::string& key) {
  return key == "schema" || key == "run.name" || key == "run.dir";
}

}  // namespace

nlohmann::json yaml_json(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::Null) return nullptr;
  if (node.kind == YamlNode::Kind::Scalar) {
    auto plain = node.quoted ? std::nullopt : read_json_if_sound<nlohmann::json>(node.text);
    return plain && (plain->is_number() || plain->is_boolean()) ? *plain : nlohmann::json(node.text);
  }
  auto json = node.kind == YamlNode::Kind::List ? nlohmann::json::array() : nlohmann::json::object();
  for (auto& child : node.children) {
    if (json.is_array()) {
      json.push_back(yaml_json(child));
    } else {
      json[child.key] = yaml_json(child);
    }
  }
  return json;
}

SweepRows SweepParts::grid(const YamlNode& part) {
  SweepRows rows = {{}};
  for (auto& column : columns(part)) {
    if (rows.size() * column.size() > kMostSweepPoints) {
      report_.add(part.key_place, "grid", fmt::format("has more than {} combinations", kMostSweepPoints));
      break;
    }
    SweepRows longer;
    for (auto& row : rows) {
      for (auto& setting : column) {
        longer.push_back(row);
        longer.back().push_back(setting);
      }
    }
    rows = std::move(longer);
  }
  return rows;
}

SweepRows SweepParts::zip(const YamlNode& part) {
  auto all = columns(part);
  SweepRows rows(all.empty() ? 0 : all[0].size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (part.children[i].children.size() != part.children[0].children.size()) {
      report_.add(
          part.children[i].place, part.children[i].key,
          fmt::format("has {} values, but {} has {}; zip takes lists of equal length", part.children[i].children.size(),
                      part.children[0].key, part.children[0].children.size()));
    }
    for (std::size_t row = 0; row < std::min(rows.size(), all[i].size()); ++row) rows[row].push_back(all[i][row]);
  }
  std::vector<Place> places;
  for (auto& row : rows) places.push_back(row.front().place);
  refuse_repeated(rows, places, "zip");
  return rows;
}

SweepRows SweepParts::list(const YamlNode& part) {
  SweepRows rows;
  std::vector<Place> places;
  std::set<std::string> claimed;
  for (auto& entry : items(part, "list", "a list of maps, like [{optimizer.lr: 0.1}]")) {
    if (entry.kind != YamlNode::Kind::Map) {
      report_.add(entry.place, "list", "expected a map of keys and values, like {optimizer.lr: 0.1}");
      continue;
    }
    auto& row = rows.emplace_back();
    places.push_back(entry.place);
    for (auto& child : entry.children) {
      if (claimed.insert(child.key).second) claim(child.key, "list", child.key_place);
      add_value(child.key, child, row);
    }
  }
  refuse_repeated(rows, places, "list");
  return rows;
}

SweepRows SweepParts::seeds(const YamlNode& part) {
  SweepRows rows;
  std::vector<Place> places;
  claim("run.seed", "seeds", part.key_place);
  for (auto& seed : items(part, "seeds", "a list of integers, like [1, 2]")) {
    add_value("run.seed", seed, rows.emplace_back());
    places.push_back(seed.place);
  }
  refuse_repeated(rows, places, "seeds");
  return rows;
}

const std::vector<YamlNode>& SweepParts::items(const YamlNode& node, const std::string& path,
                                               const std::string& expected) {
  static const std::vector<YamlNode> none;
  bool is_list = node.kind == YamlNode::Kind::List;
  if (is_list && !node.children.empty()) return node.children;
  report_.add(node.place, path, fmt::format("{}expected {}", is_list ? "is empty; " : "", expected));
  return none;
}

/// The values of each key of grid or zip.
std::vector<SweepRow> SweepParts::columns(const YamlNode& part) {
  std::vector<SweepRow> all;
  if (part.kind != YamlNode::Kind::Map || part.children.empty()) {
    report_.add(part.place, part.key, "expected keys with lists of values, like {optimizer.lr: [0.1, 0.2]}");
    return all;
  }
  for (auto& child : part.children) {
    claim(child.key, part.key, child.key_place);
    auto& column = all.emplace_back();
    for (auto& value : items(child, child.key, "a list of values, like [1, 2]")) add_value(child.key, value, column);
    if (part.key == "grid") refuse_repeated_values(column);
  }
  return all;
}

/// A key belongs to one part.
void SweepParts::claim(const std::string& key, const std::string& part, const Place& place) {
  auto [owner, fresh] = owners_.emplace(key, part);
  if (!fresh) {
    report_.add(place, key, fmt::format("stands in {} too; keep one", owner->second));
  } else if (is_fixed(key)) {
    report_.add(place, key, "cannot be swept: every point has a folder of its own, named by what differs");
  } else if (!find_key(key)) {
    report_.add(place, key, is_section(key) ? "is a section; sweep a key in it, like optimizer.lr" : unknown_key(key));
  }
}

/// A value with a problem is kept as it was written: what is told of rows then still holds.
void SweepParts::add_value(const std::string& key, const YamlNode& node, SweepRow& row) {
  std::optional<std::string> written;
  if (auto* known = is_fixed(key) ? nullptr : find_key(key)) {
    Config scratch;
    scratch.model.moe.emplace();
    if (auto problem = known->read(scratch, node)) {
      report_.add(node.place, key, *problem);
    } else {
      written = known->write(scratch);
    }
  }
  row.push_back({key, yaml_json(written ? parse_yaml(*written, report_, key) : node), written.value_or(flow_text(node)),
                 node.place});
}

void SweepParts::refuse_repeated_values(const SweepRow& column) {
  for (auto value = column.begin(); value != column.end(); ++value) {
    if (std::find_if(column.begin(), value, [&](auto& other) { return other.value == value->value; }) == value)
      continue;
    report_.add(value->place, value->key, fmt::format("{} stands in the list twice; keep one", value->yaml));
  }
}

void SweepParts::refuse_repeated(const SweepRows& rows, const std::vector<Place>& places, const std::string& part) {
  std::map<nlohmann::json, std::size_t> seen;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto [first, fresh] = seen.emplace(SweepPoint{"", rows[i]}.object(), i);
    if (fresh) continue;
    report_.add(places[i], part, fmt::format("entry {} is the same as entry {}; keep one", i + 1, first->second + 1));
  }
}

}  // namespace meshard
