#pragma once
// A mesh for people and for files: written in one place, so that plan, start-up, preflight and metrics say the same.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "mesh/mesh_shape.h"

namespace meshard {

/// Local. "dp_outer 2 x dp_shard 4".
std::string dense_text(const MeshShape& mesh);
/// Local. "expert_dp 4 x expert 2".
std::string expert_text(const MeshShape& mesh);
/// Local. {"dp_outer": 2, "dp_shard": 4, "expert_dp": 4, "expert": 2}.
nlohmann::ordered_json mesh_json(const MeshShape& mesh);

}  // namespace meshard
