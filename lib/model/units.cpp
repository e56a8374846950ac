#include "model/units.h"

namespace meshard {

std::vector<ModelUnit> model_units(const Model& model) {
  using enum ModelUnit::Kind;
  std::vector<ModelUnit> units;
  auto& lm = *model.lm;
  if (!lm.tied()) units.push_back({{&lm.embedding()}, Embedding});
  auto next_moe = model.moe ? model.moe->list().begin() : std::vector<MoeLayer*>::const_iterator{};
  auto& layers = lm.layers();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    bool has_experts = model.moe && next_moe != model.moe->list().end() && (*next_moe)->layer() == static_cast<int>(i);
    if (has_experts) units.push_back({{&(*next_moe++)->experts()}, RoutedExperts});
    units.push_back({{layers[i]}, Layer});
  }
  if (!lm.tied()) units.push_back({{&lm.norm(), &lm.head()}, Head});
  units.push_back({{&lm}, Root});
  return units;
}

}  // namespace meshard
