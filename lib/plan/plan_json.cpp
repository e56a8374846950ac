#include <nlohmann/json.hpp>

#include "mesh/mesh_text.h"
#include "plan/plan.h"

namespace meshard {

namespace {

using Json = nlohmann::ordered_json;

const char* dtype_name(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? "bf16" : "fp32";
}

Json tensors_json(const GroupPlan& group, bool layout) {
  auto tensors = Json::array();
  for (int i = 0; i < group.layout.count(); ++i) {
    Json tensor{
        {"fqn", group.parameters[i].fqn()}, {"shape", group.layout.shape(i)}, {"offset", group.layout.offset(i)}};
    if (layout) {
      auto elements = Json::array();
      for (int shard = 0; shard < group.layout.num_shards(); ++shard) {
        elements.push_back(group.layout.elements(i, shard).count());
      }
      tensor["elements_per_rank"] = std::move(elements);
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Json units_json(const Plan& plan, bool layout) {
  auto units = Json::array();
  for (auto& unit : plan.units) {
    auto groups = Json::array();
    for (auto& group : unit.groups) {
      groups.push_back({{"dtype", dtype_name(group.dtype)},
                        {"size", group.layout.size()},
                        {"padding", group.layout.padding()},
                        {"tensors", tensors_json(group, layout)}});
    }
    units.push_back({{"name", unit.name},
                     {"mesh", unit.mesh == UnitMesh::Expert ? "expert" : "dense"},
                     {"groups", std::move(groups)}});
  }
  return units;
}

}  // namespace

Json plan_json(const Plan& plan, bool layout) {
  auto& mesh = plan.mesh;
  auto& bytes = plan.bytes;
  auto traffic = Json::array();
  for (auto& row : plan.traffic) {
    traffic.push_back({{"op", row.operation},
                       {"axis", row.axis},
                       {"count", row.count},
                       {"bytes", row.bytes},
                       {"estimate", row.estimate}});
  }
  return {{"ranks", mesh.ranks()},
          {"mesh", mesh_json(mesh)},
          {"strategy", to_string(plan.config.parallel.strategy)},
          {"accumulation_steps", plan.config.accumulation_steps(mesh.data_parallel_ranks())},
          {"padding_bytes_total", plan.padding_bytes},
          {"parameters", {{"total", plan.parameters}, {"active", plan.active_parameters}}},
          {"units", units_json(plan, layout)},
          {"bytes_per_rank",
           {{"parameters", bytes.parameters},
            {"main_weights", bytes.main_weights},
            {"main_grads", bytes.main_grads},
            {"optimizer", bytes.optimizer},
            {"unsharded_peak", bytes.unsharded_peak},
            {"activations", bytes.activations},
            {"total", bytes.total()}}},
          {"comm_per_step", std::move(traffic)}};
}

}  // namespace meshard
