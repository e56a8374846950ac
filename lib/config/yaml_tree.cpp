#include "config/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "config/yaml_faults.h"

namespace meshard {
namespace {

constexpr int kMaxDepth = 32;
// Aliases of aliases can describe more nodes than memory holds; no config comes near this.
constexpr int kMaxNodes = 100000;

class Converter {
 public:
  Converter(Report& report, const std::string& override_key) : report_(report), override_key_(override_key) {}

  YamlNode convert(const YAML::Node& from, const std::string& path, int depth) {
    YamlNode node;
    node.place = place_of(from.Mark());
    if (!room_for_one_more(node.place, depth)) return node;
    if (auto& tag = from.Tag(); !tag.empty() && tag != "?" && tag != "!") {
      report_.add(node.place, path, fmt::format("the YAML tag `{}` is not allowed here; write the plain value", tag));
    }
    if (from.IsScalar()) {
      node.kind = YamlNode::Kind::Scalar;
      node.text = from.Scalar();
      node.quoted = from.Tag() == "!";
    } else if (from.IsSequence()) {
      node.kind = YamlNode::Kind::List;
      for (auto& item : from) node.children.push_back(convert(item, path, depth + 1));
    } else if (from.IsMap()) {
      convert_map(from, node, path, depth);
    }
    return node;
  }

  Place place_of(const YAML::Mark& mark) const {
    if (mark.is_null()) return {1, 1, override_key_, ""};
    return {mark.line + 1, mark.column + 1, override_key_, ""};
  }

 private:
  bool room_for_one_more(const Place& place, int depth) {
    const bool deep = depth > kMaxDepth;
    if (++nodes_ <= kMaxNodes && !deep) return true;
    if (!overflowed_) {
      report_.add(place, "",
                  fmt::format("{}; is there an alias that contains itself?",
                              deep ? fmt::format("nested more than {} levels deep", kMaxDepth)
                                   : fmt::format("more than {} values", kMaxNodes)));
    }
    overflowed_ = true;
    return false;
  }

  void convert_map(const YAML::Node& from, YamlNode& node, const std::string& path, int depth) {
    node.kind = YamlNode::Kind::Map;
    std::vector<YamlNode> merged;
    std::unordered_map<std::string, int> first_lines;
    for (auto& entry : from) {
      auto key_place = place_of(entry.first.Mark());
      if (!entry.first.IsScalar()) {
        report_.add(key_place, path, "a key here is not a plain word; expected `key: value`");
        continue;
      }
      auto& key = entry.first.Scalar();
      auto child_path = path.empty() ? key : path + "." + key;
      auto child = convert(entry.second, child_path, depth + 1);
      if (key == "<<") {
        add_merge_sources(child, merged, key_place, child_path);
        continue;
      }
      child.key = key;
      child.key_place = key_place;
      if (child.kind == YamlNode::Kind::Null) child.place = key_place;
      if (auto [first, fresh] = first_lines.emplace(key, key_place.line); !fresh) {
        auto line = override_key_.empty() ? fmt::format("; first given at line {}", first->second) : "";
        report_.add(key_place, child_path, fmt::format("duplicate key{}; keep one", line));
      } else {
        node.children.push_back(std::move(child));
      }
    }
    for (auto& source : merged) merge_missing(node, source, 0);
  }

  void add_merge_sources(const YamlNode& value, std::vector<YamlNode>& sources, const Place& place,
                         const std::string& path) {
    auto add = [&](const YamlNode& source) {
      if (source.kind == YamlNode::Kind::Map) {
        sources.push_back(source);
      } else {
        report_.add(place, path, "a merge key takes a map or a list of maps; expected `<<: *name`");
      }
    };
    if (value.kind == YamlNode::Kind::List) {
      std::ranges::for_each(value.children, add);
    } else {
      add(value);
    }
  }

  Report& report_;
  std::string override_key_;
  int nodes_ = 0;
  bool overflowed_ = false;
};

}  // namespace

YamlNode* YamlNode::find(const std::string& name) {
  auto found = std::ranges::find(children, name, &YamlNode::key);
  return kind == Kind::Map && found != children.end() ? &*found : nullptr;
}

void YamlNode::move_to(const Place& to) {
  place = key_place = to;
  for (auto& child : children) child.move_to(to);
}

YamlNode parse_yaml(const std::string& text, Report& report, const std::string& override_key) {
  Converter converter(report, override_key);
  auto add = [&](const TextFault& fault) {
    report.add({fault.line, fault.column, override_key, ""}, override_key, fault.what);
  };
  if (auto fault = foreign_byte(text)) {
    add(*fault);
    return {};
  }
  try {
    auto documents = YAML::LoadAll(text);
    if (documents.empty()) return {};
    if (documents.size() > 1) {
      report.add(converter.place_of(documents[1].Mark()), override_key,
                 "a second YAML document (`---`); expected one per file");
    }
    return converter.convert(documents[0], override_key, 0);
  } catch (const YAML::Exception& error) {
    add(explain(error, text));
    return {};
  }
}

void merge_missing(YamlNode& into, const YamlNode& defaults, int depth) {
  std::unordered_set<std::string> present;
  for (auto& child : into.children) present.insert(child.key);
  for (auto& child : defaults.children) {
    if (present.insert(child.key).second) {
      into.children.push_back(child);
    } else if (auto* mine = depth > 0 ? into.find(child.key) : nullptr;
               mine != nullptr && mine->kind == YamlNode::Kind::Map && child.kind == YamlNode::Kind::Map) {
      merge_missing(*mine, child, depth - 1);
    }
  }
}

std::string read_yaml_file(const std::filesystem::path& file) {
  auto refuse = [&](const std::string& why) {
    throw ConfigError(fmt::format("config error: 1 problem in {}\n  {}: {}; expected a YAML file", file.string(),
                                  file.filename().string(), why));
  };
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) refuse("is a folder");
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  if (!in) refuse(fmt::format("cannot be read ({})", std::strerror(errno)));
  if (in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (in.bad()) refuse("cannot be read to its end");
  return text.str();
}

}  // namespace meshard
