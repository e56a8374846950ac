#pragma once
// What a config costs on N ranks: meshes, units, layouts, bytes per rank, collectives per step. Builds the model on
// meta and derives everything from shapes: no MPI, no weights, any number of ranks. The traffic equals what the ledger
// of a real run reports.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "config/config.h"
#include "mesh/mesh_shape.h"
#include "model/units.h"
#include "sharding/placement.h"
#include "sharding/unit.h"

namespace meshard {

struct PlannedUnit {
  std::string name;
  ModelUnit::Kind kind;  ///< routed experts come before the layer that they lie within
  UnitMesh mesh;         ///< expert: shapes are those of one rank's experts
  GroupPlacement placement;
  std::vector<GroupPlan> groups;
  Unit::Keep keep = Unit::Keep::Nothing;  ///< of what is gathered, between a forward and its backward
};

/// One row of the traffic table: what one rank sends in a step.
struct PlannedTraffic {
  std::string operation;
  std::string axis;
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  bool estimate = false;  ///< depends on the routing: counted as if it were uniform
};

struct BytesPerRank {
  std::int64_t parameters = 0;  ///< model weights that do not share storage with main weights
  std::int64_t main_weights = 0;
  std::int64_t main_grads = 0;  ///< pending and final, as a normal step needs them
  std::int64_t optimizer = 0;
  std::int64_t unsharded_peak = 0;  ///< gathered parameters and full gradients in flight
  std::int64_t activations = 0;     ///< what backward needs, an estimate from the shapes that the layers save
  std::int64_t total() const {
    return parameters + main_weights + main_grads + optimizer + unsharded_peak + activations;
  }
};

struct Plan {
  Config config;
  MeshShape mesh;
  std::vector<PlannedUnit> units;      ///< in the order of fully_shard, without those that own nothing
  std::int64_t parameters = 0;         ///< of all ranks together
  std::int64_t active_parameters = 0;  ///< that one token passes through: of the routed experts, K of E
  std::int64_t padding_bytes = 0;      ///< of all groups' full buffers, in the dtype of their parameters
  std::int64_t moe_layers = 0;
  BytesPerRank bytes;
  std::vector<PlannedTraffic> traffic;  ///< per step, without start-up, evaluation and control
};

/// Local. `config` must have been loaded for this number of ranks.
Plan make_plan(const Config& config, int ranks);

/// Local. Lays the units of a plan out by another config of the same model, ranks and expert ranks: what strategy,
/// mesh, batch and recomputation change, without building the model again. All but `traffic` is then as make_plan()
/// says. LogicError for a config of other expert ranks.
void place_units(Plan& plan, const Config& config);

/// Local. The object of train/CONTRACT.md section 9; with `layout` every tensor carries elements_per_rank.
nlohmann::ordered_json plan_json(const Plan& plan, bool layout);

/// Local. The same for people. `ranks_per_node` above 0: also over how many nodes each axis runs.
std::string plan_text(const Plan& plan, bool layout, int ranks_per_node = 0);

/// Local. "fp32" or "bf16": the words of the config.
const char* dtype_name(at::ScalarType dtype);
/// Local. "1.2 GB": decimal units, as network and memory people quote them.
std::string human_bytes(std::int64_t bytes);
/// Local. "8.03 B".
std::string human_count(std::int64_t count);

}  // namespace meshard
