#pragma once
// The families of models that are known: one row each, and the one place that says which one a model is of. Reading a
// config.json, building and exporting ask the row; FAMILIES.md describes them.

#include <array>
#include <string_view>

#include "config/config.h"

namespace meshard {

enum class ModelFamily { Llama, Qwen3, Qwen3Moe, Glm4Moe };

struct ModelFamilyInfo {
  ModelFamily family;
  std::string_view model_type;   ///< of a config.json
  std::string_view model_class;  ///< of transformers: what `architectures` names, and what an export is
  bool experts;                  ///< some feed-forward parts are mixtures of experts
  MoeConfig::Scoring scoring;    ///< of their router
  bool output_bias;              ///< with attention_bias, o_proj has a bias, too
  bool partial_rotary;           ///< a part of each head may rotate
};

/// In the order of the enum.
inline constexpr std::array<ModelFamilyInfo, 4> kModelFamilies = {
    {{ModelFamily::Llama, "llama", "LlamaForCausalLM", false, {}, true, false},
     {ModelFamily::Qwen3, "qwen3", "Qwen3ForCausalLM", false, {}, true, false},
     {ModelFamily::Qwen3Moe, "qwen3_moe", "Qwen3MoeForCausalLM", true, MoeConfig::Scoring::Softmax, true, false},
     {ModelFamily::Glm4Moe, "glm4_moe", "Glm4MoeForCausalLM", true, MoeConfig::Scoring::Sigmoid, false, true}}};

/// Local.
constexpr const ModelFamilyInfo& info_of(ModelFamily family) {
  return kModelFamilies[static_cast<std::size_t>(family)];
}

/// Local. The family that a model with these keys is of: with experts the one of its scoring function, without them
/// qwen3 if queries and keys are normalised, else llama. A model may go beyond what its class in transformers can do;
/// an export then says in what.
ModelFamily family_of(const ModelConfig& model);

}  // namespace meshard
