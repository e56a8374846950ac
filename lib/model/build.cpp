#include "model/build.h"

namespace meshard {

Model build_model(const Config& config, at::Device device, const ExpertParallel& parallel) {
  // Real tensors are the main weights to be: rounding them to precision.param first would lose what meta keeps.
  auto dtype = device.is_meta() ? config.precision.param : config.precision.main_param;
  auto options = model_options(config);
  Model model;
  BlockFactories factories;
  if (options.moe) {
    model.moe = std::make_unique<MoeLayers>(*options.moe, options.first_k_dense_replace, parallel);
    factories.feed_forward = [&layers = *model.moe](std::int64_t layer, const at::TensorOptions& tensor_options) {
      return layers.make(layer, tensor_options);
    };
  }
  model.lm = std::make_unique<CausalLM>(options.decoder,
                                        at::TensorOptions().device(device).dtype(scalar_type(dtype)), factories);
  return model;
}

}  // namespace meshard
