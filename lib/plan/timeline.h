#pragma once
// A predicted step, for people and for scripts.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "plan/step_model.h"

namespace meshard {

/// Local. Lines of `plan --timeline`.
std::string timeline_text(const StepPrediction& step, const Plan& plan, const Hardware& hardware);

/// Local. The object `timeline` of train/CONTRACT.md section 9.
nlohmann::ordered_json timeline_json(const StepPrediction& step, const Plan& plan, const Hardware& hardware);

}  // namespace meshard
