#pragma once
// A YAML document as a plain tree in which every key and value has its place. Aliases are expanded and merge keys
// (`<<`) applied; what yaml-cpp lets pass in silence (duplicate keys, tags, a second document) is reported.

#include <filesystem>
#include <string>
#include <vector>

#include "config/report.h"

namespace meshard {

struct YamlNode {
  enum class Kind { Null, Scalar, List, Map };
  Kind kind = Kind::Null;
  std::string text;     ///< of a scalar
  bool quoted = false;  ///< "8" is text, 8 a number
  Place place;          ///< of the value; of the key where the value is null
  std::string key;      ///< of a map's child
  Place key_place;
  std::vector<YamlNode> children;  ///< of a list or map, in order

  /// Local. The child of that key, or nullptr.
  YamlNode* find(const std::string& name);

  /// Local. Gives this node and all below it the place `to`.
  void move_to(const Place& to);
};

/// Local. Parses `text`. A byte that is not UTF-8, a control character, a syntax error, a second document, a duplicate
/// key (the first is kept), a tag, a key that is not a plain word, and aliases that nest or multiply without end go
/// into `report`; what is left of the document is returned. With `override_key` every place is that override.
YamlNode parse_yaml(const std::string& text, Report& report, const std::string& override_key = "");

/// Local. The text of a file. ConfigError where there is none that can be read: missing, a folder.
std::string read_yaml_file(const std::filesystem::path& file);

/// Local. Adds to the map `into` what it lacks of the map `defaults`, and to its maps likewise (`depth` levels down).
void merge_missing(YamlNode& into, const YamlNode& defaults, int depth);

}  // namespace meshard
