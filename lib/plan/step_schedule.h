#pragma once
// What one rank issues in a step, in order: sharding/DESIGN.md section 8 as a list of operations.

#include <vector>

#include "plan/hardware.h"
#include "plan/lanes.h"
#include "plan/plan.h"

namespace meshard {

/// Local. From the refresh of the weights that the last step's optimizer left to the end of this step's optimizer.
/// ConfigError as axis_link().
std::vector<StepOperation> step_operations(const Plan& plan, const Hardware& hardware);

}  // namespace meshard
