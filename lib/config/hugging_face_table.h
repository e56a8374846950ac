#pragma once
// The one table of a Hugging Face config.json: which fields each family of models may have, and what each is to us. A
// field that is not in it may change what the model computes: it is refused. Checked against transformers 4.57.6 and
// 5.18.0: what their classes define, read and save, and which nulls they take. FAMILIES.md.

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "config/model_family.h"

namespace meshard {

struct HuggingFaceField {
  enum class Use {
    Honoured,  ///< decides what the model computes: as one of our keys, or together with other fields
    Fixed,     ///< refused unless it says what is computed anyway
    Harmless,  ///< says nothing about what the model computes: training, generation, storage
  };
  std::string_view name;
  Use use = Use::Harmless;
  /// The key of our model section that it becomes ("moe.n_group"), honoured or fixed. Empty: none, or not as it stands.
  std::string_view key = {};
  nlohmann::json default_value = {};  ///< honoured: what the class takes where the file has none; null: nothing
  /// Fixed: the values that say what is computed anyway. The key gets the first, also where the file has none.
  std::vector<nlohmann::json> accepted = {};
};

struct HuggingFaceFamily {
  ModelFamily family;
  std::vector<HuggingFaceField> fields;  ///< each once

  const ModelFamilyInfo& info() const { return info_of(family); }
  /// Local. The field of that name, or nullptr.
  const HuggingFaceField* find(std::string_view name) const;
};

/// Local. Those that from_hf reads.
const std::vector<HuggingFaceFamily>& hugging_face_families();

}  // namespace meshard
