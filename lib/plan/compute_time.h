#pragma once
// How long one rank computes: every product, pass over memory and kernel of a microbatch, by a roofline. A product
// takes the longer of its flops at the achieved rate and its bytes at the bandwidth of memory; all else takes its
// bytes.

#include <cstdint>

#include "config/config.h"
#include "plan/hardware.h"

namespace meshard {

/// Of one microbatch, s.
struct PassTimes {
  double forward = 0.0, backward = 0.0;
};

/// Of one microbatch of the config on one rank, by pieces that communication comes between.
struct ComputeTimes {
  PassTimes embedding;
  PassTimes attention;  ///< of a layer: norms, projections, attention; router and shared experts are apart
  PassTimes dense;      ///< of a layer without experts
  PassTimes router;     ///< of a layer with experts: scores, choice, sorting of rows
  PassTimes routed;     ///< rows in order of their experts, the experts, rows added up
  PassTimes shared;     ///< shared experts
  PassTimes head;       ///< last norm, logits, loss
};

/// Local. Experts as if each got the same number of rows; `expert`: ranks that share one set of experts.
ComputeTimes compute_times(const Config& config, int expert, const Hardware& hardware);

/// Local. A pass over memory: `bytes` read and written by `kernels` kernels.
double memory_time(double bytes, int kernels, const Hardware& hardware);

/// Local. Operations of a forward and a backward per token, as `mfu` counts them: 6 for each weight that the token
/// passes through, but the embedding's, and 12 x layers x heads x head_dim x seq_len for attention. Recomputation does
/// not count.
double flops_per_token(const Config& config, std::int64_t active_parameters);

}  // namespace meshard
