#include "moe/fault.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshard {

Fault fault_of(std::string_view word) {
  using enum Fault;
  for (auto [name, fault] : std::initializer_list<std::pair<std::string_view, Fault>>{
           {"none", None},
           {"clobber_real_buffers", ClobberRealBuffers},
           {"bias_cast_to_param_dtype", BiasCastToParamDtype},
           {"counts_in_bf16", CountsInBf16},
           {"update_per_microbatch", UpdatePerMicrobatch},
           {"no_outer_reduce", NoOuterReduce},
           {"count_in_eval", CountInEval},
           {"double_count_recompute", DoubleCountRecompute},
           {"weights_from_biased_scores", WeightsFromBiasedScores},
           {"expert_grad_unscaled", ExpertGradUnscaled},
           {"counts_lost_on_resume", CountsLostOnResume}}) {
    if (name == word) return fault;
  }
  throw ArgumentError(fmt::format("no fault is called {}", word));
}

}  // namespace meshard
