#pragma once
// A model as this room sees it: what decides on names, shapes and config.json.

#include <optional>

#include "moe/options.h"
#include "nn/decoder.h"

namespace meshard {

struct HfModel {
  DecoderConfig decoder;
  std::optional<MoeOptions> moe;           ///< none: dense
  std::int64_t first_k_dense_replace = 0;  ///< decoder blocks before this one are dense, with `moe` too

  bool has_experts(std::int64_t layer) const { return moe && layer >= first_k_dense_replace; }
};

}  // namespace meshard
