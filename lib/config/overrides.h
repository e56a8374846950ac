#pragma once
// `--set a.b=value`: the value is YAML, and takes the place of what the file says.

#include <string>

#include "config/yaml_tree.h"

namespace meshard {

/// Local. Puts one override into the document `root` (a map). The key may be a section, for which the value is a map.
/// Of two overrides of a key the later holds. A malformed one, an unknown key and a value that is not YAML go into
/// `report`.
void apply_override(YamlNode& root, const std::string& assignment, Report& report);

}  // namespace meshard
