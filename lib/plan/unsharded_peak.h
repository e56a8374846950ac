#pragma once

#include <cstdint>

#include "plan/plan.h"
#include "sharding/param_group.h"

namespace meshard {

/// Local. Bytes that the runtime's pool reaches: parameters gathered at once and full gradients in flight, in blocks as
/// the pool takes them.
std::int64_t unsharded_peak(const std::vector<PlannedUnit>& units, int prefetch, const Precision& precision);

}  // namespace meshard
