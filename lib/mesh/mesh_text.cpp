#include "mesh/mesh_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace meshard {

namespace {

std::string product_text(const MeshShape& mesh, Axis a, Axis b) {
  return fmt::format("{} {} x {} {}", axis_name(a), mesh.size(a), axis_name(b), mesh.size(b));
}

}  // namespace

std::string dense_text(const MeshShape& mesh) {
  return product_text(mesh, Axis::DpOuter, Axis::DpShard);
}

std::string expert_text(const MeshShape& mesh) {
  return product_text(mesh, Axis::ExpertDp, Axis::Expert);
}

nlohmann::ordered_json mesh_json(const MeshShape& mesh) {
  nlohmann::ordered_json json;
  for (auto axis : {Axis::DpOuter, Axis::DpShard, Axis::ExpertDp, Axis::Expert}) {
    json[std::string(axis_name(axis))] = mesh.size(axis);
  }
  return json;
}

}  // namespace meshard
