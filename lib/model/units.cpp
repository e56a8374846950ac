#include "model/units.h"

namespace meshard {

std::vector<ModelUnit> model_units(const Model& model) {
  std::vector<ModelUnit> units;
  auto next_moe = model.moe ? model.moe->list().begin() : std::vector<MoeLayer*>::const_iterator{};
  auto& layers = model.lm->layers();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    bool has_experts = model.moe && next_moe != model.moe->list().end() && (*next_moe)->layer() == static_cast<int>(i);
    if (has_experts) units.push_back({&(*next_moe++)->experts(), ModelUnit::Kind::RoutedExperts});
    units.push_back({layers[i], ModelUnit::Kind::Layer});
  }
  units.push_back({model.lm.get(), ModelUnit::Kind::Root});
  return units;
}

}  // namespace meshard
