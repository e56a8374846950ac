#pragma once
// The cost model's figures as these ranks achieve them.

#include <string>

#include "mesh/preflight.h"
#include "plan/hardware.h"

namespace meshard {

/// Local. dp_outer between nodes, dp_shard within one, so that preflight measures either link by itself. ConfigError
/// unless the ranks fill node after node, equally many on each.
MeshShape mesh_of_nodes(World& world);

/// Collective over world. What preflight measured on a mesh_of_nodes(), and what it did not: the other dtype's
/// products, attention, what starting a kernel costs, and what communication takes of a core where it is the core that
/// carries it. Of ranks that differ the slowest counts, as all others wait for it. A link that no two ranks share is
/// absent. About three seconds. The same on every rank.
Hardware measure_hardware(const Mesh& mesh, const PreflightReport& report);

}  // namespace meshard
