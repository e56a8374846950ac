#pragma once
// The faults of the catalogue that strike at start-up; the others live where their mechanism does (moe/). moe/DESIGN.md
// section 10.

#include "module/module.h"
#include "moe/fault.h"

namespace meshard {

/// Local. Between sharding and initialisation: ClobberRealBuffers gives every real floating-point buffer below `root`
/// new memory, poisoned with NaN, as materialising the model wrongly would; BiasCastToParamDtype casts the expert
/// biases to `param`. Nothing for other faults.
void strike_at_start(Fault fault, Module& root, at::ScalarType param);

}  // namespace meshard
