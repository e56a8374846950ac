#pragma once
// The curves of a report. A new one is a row here, its reading in lines.cpp and its plot in plots.js.

#include <array>
#include <string_view>

namespace meshard {

/// A number of a step's line that is drawn over the steps. Of several layers: the worst, or the sum (dead, dropped).
enum class Curve {
  Loss,
  GradNorm,
  Lr,
  TokensPerS,
  Mfu,
  Memory,
  StepMs,  ///< median over the ranks
  DataMs,
  CommMs,      ///< that computation waited
  CommBusyMs,  ///< that anything was under way
  StallMs,
  AuxLoss,
  ZLoss,
  MaxVio,
  BiasMin,
  BiasMax,
  Dead,
  Dropped,
};

/// The metrics (base/metric_names.h) that they show, in the order of the enum; those of layers without their "moe.".
inline constexpr std::array<std::string_view, 18> kCurveNames = {
    "loss", "grad_norm", "lr", "tokens_per_s", "mfu", "mem_peak_bytes", "step_ms", "data_ms", "comm_ms",
    "comm_busy_ms", "checkpoint_stall_ms", "aux_loss", "z_loss", "max_vio", "bias_min", "bias_max", "dead", "dropped"};

}  // namespace meshard
