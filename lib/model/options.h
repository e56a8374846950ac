#pragma once
// From the config's words to the options of the parts of a model: one mapping, whoever asks (building, plan, files of
// Hugging Face).

#include <optional>

#include "config/config.h"
#include "config/model_family.h"
#include "moe/options.h"
#include "nn/options.h"

namespace meshard {

/// A model without its weights: what decides on its modules, names, shapes and maths.
struct ModelOptions {
  ModelFamily family = ModelFamily::Llama;
  DecoderOptions decoder;
  std::optional<MoeOptions> moe;           ///< none: dense
  std::int64_t first_k_dense_replace = 0;  ///< decoder blocks before this one are dense, with `moe` too

  bool has_experts(std::int64_t layer) const { return moe && layer >= first_k_dense_replace; }
};

/// Local.
ModelOptions model_options(const Config& config);

/// Local.
at::ScalarType scalar_type(Dtype dtype);

}  // namespace meshard
