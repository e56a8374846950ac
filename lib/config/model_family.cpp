#include "config/model_family.h"

#include "base/error.h"

namespace meshard {

ModelFamily family_of(const ModelConfig& model) {
  if (!model.moe) return model.use_qk_norm ? ModelFamily::Qwen3 : ModelFamily::Llama;
  switch (model.moe->scoring_func) {
    case MoeConfig::Scoring::Sigmoid:
      return ModelFamily::Glm4Moe;
    case MoeConfig::Scoring::Softmax:
      return ModelFamily::Qwen3Moe;
  }
  throw LogicError("unknown scoring function");
}

}  // namespace meshard
