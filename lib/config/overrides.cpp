#include "config/overrides.h"

#include "config/keys.h"

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
  auto value = parse_yaml(assignment.substr(equals + 1), report, path);
  auto* node = report.clean({path}) ? make_path(root, path, place) : nullptr;
  if (node == nullptr) return;
  value.move_to(place);
  value.key = node->key;
  *node = std::move(value);
}

}  // namespace meshard
