#pragma once
// How a flat buffer lies over the axes of a mesh, and which placements a strategy asks for. Pure arithmetic. DESIGN.md
// sections 3 and 4.

#include <string>
#include <vector>

#include "base/strategy.h"
#include "mesh/mesh_shape.h"

namespace meshard {

enum class Placement {
  Replicate,  ///< every rank of the axis holds the same values
  Partial,    ///< every rank holds an addend; the value is their average (or sum)
  Flat,       ///< every rank holds an equal contiguous slice
};

/// One per axis, outer first. Flat axes form a suffix: the inner axis makes the coarse cut, the outer one the fine cut.
using Placements = std::vector<Placement>;

/// Local. "[Partial,Flat]", for messages.
std::string to_string(const Placements& placements);

/// Local. Throws ArgumentError ("suffix") unless the Flat axes form a suffix.
void check_suffix(const Placements& placements);

/// Which mesh the parameters of a unit are spread over.
enum class UnitMesh {
  Dense,   ///< dp_outer x dp_shard
  Expert,  ///< routed experts, with expert parallelism: expert_dp, each rank of `expert` for its own experts
};

/// Where the buffers of a parameter group live: the axes that have more than one rank, outer first, and per axis the
/// placement of each buffer. No axes: one rank, plain training.
struct GroupPlacement {
  std::vector<Axis> axes;
  Placements params;     ///< P: what a module holds between its forward and the next
  Placements grads;      ///< G: main gradients between microbatches
  Placements optimizer;  ///< O: main weights, optimizer state, and main gradients at the step
  int num_shards = 1;    ///< of the flat layout: ranks of the mesh, whatever the placements: all share one layout

  bool gathers() const;  ///< P is sharded: a forward gathers and releases
};

/// Local. The table of strategies (DESIGN.md section 4). On the dense mesh, fsdp with both axes above 1 uses the one
/// axis `world`; on the expert mesh each strategy takes its 1-D form over `expert_dp`, hsdp and hfsdp that of fsdp.
GroupPlacement place_unit(UnitMesh on, Strategy strategy, const MeshShape& mesh);

}  // namespace meshard
