#pragma once
// Where two runs part. train/CONTRACT.md section 8.

#include <optional>
#include <string>
#include <vector>

#include "runs/metrics.h"

namespace meshard {

struct CompareOptions {
  double rtol = 2e-5;  ///< largest relative difference of two numbers that count as the same
  bool exact = false;  ///< numbers must be equal to the bit; rtol is not used
  /// Names of metrics to look at; empty: all that the mesh and the clock do not change. "moe" stands for all of those
  /// in it, "moe.bias_max" for one of its fields in every layer.
  std::vector<std::string> metrics;
};

/// One metric of one step that differs.
struct Difference {
  std::int64_t step = 0;
  std::string metric;              ///< "loss", "moe.count_total", "unit_grad_norm", "eval_loss"
  std::string where;               ///< "layer 3", "layer 3, expert 5", "model.layers.0"; empty: the whole model
  std::string a, b;                ///< the two values
  std::optional<double> relative;  ///< |a - b| / max(|a|, |b|), if both are finite numbers
};

struct Comparison {
  std::int64_t steps = 0;                    ///< steps that both have
  std::vector<std::int64_t> only_a, only_b;  ///< steps (evaluations too) that one of them lacks
  std::vector<Difference> differences;       ///< by step, then metrics in the order of the file, then layer
  bool same() const { return differences.empty() && only_a.empty() && only_b.empty(); }
};

/// Local. Aligns by step. A metric that only one of them has is a difference of its first step. Throws ArgumentError if
/// no step is common, or a metric of `options` occurs in neither.
Comparison compare_runs(const RunMetrics& a, const RunMetrics& b, const CompareOptions& options);

/// Local. For people: the two runs, their faults, steps compared; then, if they part, the first step, metric and layer
/// with both values, how each other metric fares (first step, largest difference), and what only one of them has.
std::string comparison_text(const RunMetrics& a, const RunMetrics& b, const Comparison& comparison);

}  // namespace meshard
