#pragma once
// Reads a Hugging Face config.json as the values of our model section. Field names and defaults: FAMILIES.md, checked
// against transformers 4.57 and 5.x (both spellings are read: top-level rope_theta, or rope_parameters).

#include <optional>
#include <string>

#include "config/yaml_tree.h"

namespace meshard {

/// Local. The model section that `file` describes, as a map (with `moe` where it has experts), every value with the
/// place `place`. Fields that the file lacks get the default of the model's class; a null where the class takes none
/// becomes a null, which the key refuses. Nothing for a file that cannot be read (two equal keys included) or is of an
/// unknown model_type. That, and every feature that Meshard or the class does not have, and every field that is not in
/// hugging_face_table.h, goes into `report`, by name, as a problem of `key` ("model.from_hf"; empty: of no key).
std::optional<YamlNode> read_hugging_face(const std::string& file, const std::string& key, const Place& place,
                                          Report& report);

}  // namespace meshard
