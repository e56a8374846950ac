#pragma once
// The fields of one Hugging Face config.json, and the refusal of those that Meshard cannot honour.

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "config/hugging_face_table.h"
#include "config/report.h"

namespace meshard {

class HuggingFaceFields {
 public:
  /// Local. `root` is an object.
  explicit HuggingFaceFields(nlohmann::json root);

  /// model_type, or what stands there instead, in brackets.
  const std::string& type() const { return type_; }
  bool known_type() const { return family_ != nullptr; }
  /// Of a known type.
  const HuggingFaceFamily& family() const { return *family_; }
  bool glm() const { return family_ && family_->family == ModelFamily::Glm4Moe; }
  bool qwen() const { return type_ == "qwen3" || type_ == "qwen3_moe"; }

  bool has(const std::string& name) const { return root_.contains(name); }
  /// Null where the file has none.
  const nlohmann::json& operator[](const std::string& name) const;
  const nlohmann::json& all() const { return root_; }

  /// How many layers, the first ones, have no experts. SIZE_MAX in a dense model.
  std::size_t dense_layers() const;

  /// Whether transformers 5 or later wrote the file: it reads rope_parameters before the fields outside of it, which 4
  /// reads alone.
  bool of_transformers_5() const;

 private:
  nlohmann::json root_;
  std::string type_;
  const HuggingFaceFamily* family_ = nullptr;
};

/// Local. Reports as problems of `key` at `place` what the file asks for and Meshard, or the model class of its
/// type, does not do, what contradicts itself, and every field that is not in the table. The type must be known.
void refuse_what_we_lack(const HuggingFaceFields& fields, const std::string& key, const Place& place, Report& report);

}  // namespace meshard
