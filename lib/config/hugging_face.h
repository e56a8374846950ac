#pragma once
// Reads a Hugging Face config.json as the values of our model section. Field names and defaults: huggingface.md,
// checked against transformers 4.57 and 5.x (both spellings are read: top-level rope_theta, or rope_parameters).

#include <string>

#include "config/yaml_tree.h"

namespace meshard {

/// Local. The model section that `file` describes, as a map (with `moe` where it has experts), every value with the
/// place `place`. Sizes that the file lacks are left out. An unreadable file, an unknown model_type and every feature
/// that Meshard cannot honour (rope scaling, sliding windows, another activation, an MLP bias, dropout, quantized
/// weights, dense layers that are not the first) go into `report`, by name, as problems of model.from_hf.
/// What concerns training only (router_aux_loss_coeff) or generation is passed over.
YamlNode read_hugging_face(const std::string& file, const Place& place, Report& report);

}  // namespace meshard
