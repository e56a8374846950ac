#pragma once
// Proof that every parameter and buffer holds what it should before training starts. DESIGN.md section 6.

#include "sharding/runtime.h"

namespace meshard {

/// Collective over world. After initialisation: every parameter finite and within 8 standard deviations of its declared
/// distribution (constants: equal), every buffer bitwise equal to its declared value. One pass, on shards. Throws
/// NonFiniteError, the same on every rank, naming the first offender, its value and the rank that holds it.
void audit_initialisation(const ShardingRuntime& runtime);

/// Collective over world. After a load: every parameter finite, every buffer that is not persistent bitwise equal to
/// its declared value. Throws as above.
void audit_load(const ShardingRuntime& runtime);

}  // namespace meshard
