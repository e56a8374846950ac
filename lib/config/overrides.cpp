#include "config/overrides.h"

#include <fmt/format.h>

#include "config/keys.h"
#include "config/yaml_faults.h"

namespace meshard {
namespace {

// The node of `path`, made where it is missing. Nullptr if a scalar or list stands in the way: reading the file
// reports that one.
YamlNode* make_path(YamlNode& root, const std::string& path, const Place& place) {
  auto* node = &root;
  for (std::size_t begin = 0; begin <= path.size();) {
    auto dot = std::min(path.find('.', begin), path.size());
    auto name = path.substr(begin, dot - begin);
    if (node->kind == YamlNode::Kind::Null) node->kind = YamlNode::Kind::Map;
    if (node->kind != YamlNode::Kind::Map) return nullptr;
    auto* child = node->find(name);
    if (child == nullptr) {
      YamlNode fresh;
      fresh.key = name;
      fresh.place = fresh.key_place = place;
      child = &node->children.emplace_back(std::move(fresh));
    }
    node = child;
    begin = dot + 1;
  }
  return node;
}

std::string without_blanks(const std::string& text) {
  auto begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, end + 1 - begin);
}

YamlNode read_assigned(const std::string& path, const std::string& text, const Place& place, Report& report) {
  auto* key = find_key(path);
  auto bare = without_blanks(text);
  const bool in_quotes = bare.starts_with('"') || bare.starts_with('\'');
  if (key != nullptr && key->takes_text && !in_quotes && !is_null_word(bare)) {
    YamlNode node;
    node.kind = YamlNode::Kind::Scalar;
    node.text = text;
    node.quoted = true;
    return node;
  }
  if (has_comment(text)) {
    report.add(place, path, "a `#` after a blank would cut the value off; put the text that holds it in quotes");
  }
  return parse_yaml(text, report, path);
}

}  // namespace

void apply_override(YamlNode& root, const std::string& assignment, Report& report) {
  auto equals = assignment.find('=');
  auto path = assignment.substr(0, equals);
  Place place{.override_key = !path.empty() ? path : assignment.empty() ? "''" : assignment};
  if (equals == std::string::npos || path.empty()) {
    report.add(place, place.override_key, "is not an assignment; expected `--set section.key=value`");
    return;
  }
  if (find_key(path) == nullptr && !is_section(path)) {
    report.add(place, path, unknown_key(path));
    return;
  }
  auto text = assignment.substr(equals + 1);
  if (auto fault = foreign_byte(text)) {
    report.add(place, path, fmt::format("{} (column {} of the value)", fault->what, fault->column));
    return;
  }
  auto value = read_assigned(path, text, place, report);
  auto* node = report.clean({path}) ? make_path(root, path, place) : nullptr;
  if (node == nullptr) return;
  value.move_to(place);
  value.key = node->key;
  *node = std::move(value);
}

}  // namespace meshard
