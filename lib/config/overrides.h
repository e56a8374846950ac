#pragma once
// `--set a.b=value` takes the place of what the file says. The value is all that follows the first `=`. For a key that
// takes any text it is that text, whatever characters it has; only a text in quotes is read as YAML, and null is null.
// For any other key it is YAML, without comments: a `#` would cut it.

#include <string>

#include "config/yaml_tree.h"

namespace meshard {

/// Local. Puts one override into the document `root` (a map). The key may be a section, for which the value is a map.
/// Of two overrides of a key the later holds. A malformed one, an unknown key and a value that is not YAML go into
/// `report`.
void apply_override(YamlNode& root, const std::string& assignment, Report& report);

}  // namespace meshard
