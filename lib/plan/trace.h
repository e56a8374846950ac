#pragma once
// A predicted step as a file that Perfetto (ui.perfetto.dev) and chrome://tracing open: JSON trace events.

#include <nlohmann/json_fwd.hpp>

#include "plan/step_model.h"

namespace meshard {

/// Local. One complete event ("ph": "X", times in us) per operation, a thread per lane; spans of a lane do not overlap.
/// `args` has the unit, and of collectives the axis and the bytes that a rank sends.
nlohmann::ordered_json trace_json(const StepPrediction& step, const Plan& plan);

}  // namespace meshard
