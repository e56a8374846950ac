#pragma once
// A model from a config.

#include <memory>

#include "model/options.h"
#include "moe/moe_layer.h"
#include "nn/causal_lm.h"

namespace meshard {

/// A model and, with experts, what its MoE layers share.
struct Model {
  std::unique_ptr<MoeLayers> moe;  ///< null: dense
  std::unique_ptr<CausalLM> lm;
};

/// Local. The model on `device`: on meta in precision.param, without memory for weights; real in precision.main_param.
/// It holds the experts of `parallel.rank`.
Model build_model(const Config& config, at::Device device, const ExpertParallel& parallel);

}  // namespace meshard
