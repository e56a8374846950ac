#pragma once
// How a config lays a model over ranks: the mesh, and what each unit is told.

#include "config/config.h"
#include "mesh/mesh_shape.h"
#include "model/units.h"
#include "sharding/runtime.h"

namespace meshard {

/// Local.
MeshShape mesh_shape(const Config& config, int ranks);

/// Local. The dtypes of buffers and of what goes over the wire.
Precision precision_of(const Config& config);

/// Local. How a unit is sharded. Routed experts lie on the expert mesh, but with ep == 1 are like any other parameter.
ShardOptions shard_options(const Config& config, const ModelUnit& unit);

}  // namespace meshard
