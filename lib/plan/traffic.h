#pragma once
// Bytes and collectives of one parameter group, from its placement alone.

#include <map>
#include <string>
#include <utility>

#include "plan/plan.h"
#include "sharding/param_group.h"

namespace meshard {

using TrafficTable = std::map<std::pair<std::string, std::string>, PlannedTraffic>;  ///< by (operation, axis)

/// Local. Elements that a rank holds of a buffer of `size` under `placements`.
std::int64_t held(std::int64_t size, const GroupPlacement& group, const Placements& placements, const MeshShape& mesh);

/// Local. Adds what the group sends in one step of `microbatches`, each of which gathers it once or twice.
void add_group_traffic(TrafficTable& table, const GroupPlan& group, const GroupPlacement& placement,
                       const MeshShape& mesh, const Precision& precision, std::int64_t microbatches,
                       std::int64_t gathers);

/// Local. Adds what `layers` MoE layers send in one step: rows to their experts and back, counts, and the sum of all
/// counts. Rows are an estimate, as if every expert got the same.
void add_moe_traffic(TrafficTable& table, const Config& config, const MeshShape& mesh, std::int64_t layers);

/// Local. Adds what the group occupies on every rank at rest and in gradients.
void add_group_bytes(BytesPerRank& bytes, const GroupPlan& group, const GroupPlacement& placement,
                     const MeshShape& mesh, const Precision& precision, std::int64_t optimizer_bytes_per_element);

}  // namespace meshard
