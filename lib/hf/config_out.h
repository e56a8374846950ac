#pragma once
// config.json of a model, so that Hugging Face's class of it computes the same. config/FAMILIES.md section 8. Written
// in the form of transformers 4, which 5 reads, too.

#include <c10/core/ScalarType.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/options.h"

namespace meshard {

struct HfConfig {
  nlohmann::ordered_json json;        ///< the content of config.json
  std::vector<std::string> warnings;  ///< where the class computes something else than training did
};

/// Local. The class follows from the model: experts routed by sigmoid are Glm4MoeForCausalLM, by softmax
/// Qwen3MoeForCausalLM; dense ones are LlamaForCausalLM, with QK norm Qwen3ForCausalLM. `dtype`: of the weights, fp32
/// or bf16.
///
/// Throws ConfigError with every reason, each naming its key, if that class cannot express the model. A capacity_factor
/// is a warning: Hugging Face drops no token.
HfConfig hf_config(const ModelOptions& model, at::ScalarType dtype);

}  // namespace meshard
