#pragma once
// The fields of a Hugging Face config.json, and the refusal of those that Meshard cannot honour. What a class defaults
// to and which fields it has: configuration_*.py of transformers 4.57.6 and 5.18.0.

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "config/report.h"

namespace meshard {

class HuggingFaceFields {
 public:
  /// Local. `root` is an object.
  explicit HuggingFaceFields(nlohmann::json root);

  /// model_type, or what stands there instead, in brackets.
  const std::string& type() const { return type_; }
  bool known_type() const { return !model_class().empty(); }
  /// The name that `architectures` has for this type; empty for an unknown type.
  std::string model_class() const;
  bool glm() const { return type_ == "glm4_moe"; }
  bool qwen() const { return type_ == "qwen3" || type_ == "qwen3_moe"; }
  bool has_experts() const { return glm() || type_ == "qwen3_moe"; }

  bool has(const std::string& name) const { return root_.contains(name); }
  /// Null where the file has none.
  const nlohmann::json& operator[](const std::string& name) const;

  /// How many layers, the first ones, have no experts. SIZE_MAX in a dense model.
  std::size_t dense_layers() const;

 private:
  nlohmann::json root_;
  std::string type_;
};

/// Local. Reports as problems of model.from_hf at `place` what the file asks for and Meshard, or the model class of its
/// type, does not do, and what contradicts itself. The type must be known.
void refuse_what_we_lack(const HuggingFaceFields& fields, const Place& place, Report& report);

}  // namespace meshard
