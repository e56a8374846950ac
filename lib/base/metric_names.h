#pragma once
// The numbers of a run's metrics.jsonl: one table for whoever writes, compares or draws them. A new metric is a row
// here, a line in train/metrics.cpp and, to be drawn, one in report/curves.h.

#include <array>
#include <string_view>

namespace meshard {

/// What a metric is when the same run is done once more on another mesh or machine.
enum class MetricNature {
  Result,       ///< the same, up to rounding: what `compare` compares
  Measurement,  ///< of clock, memory, machine or mesh: compared only if it is named
  Derived,      ///< another metric in other words: compared only if it is named
};

struct MetricInfo {
  std::string_view name;  ///< the key in a line; "moe.x": x below `moe`, or below each of its layers
  std::string_view unit;
  MetricNature nature;
};

inline constexpr std::array<MetricInfo, 38> kMetrics = {{
    {"step", "steps done", MetricNature::Result},
    {"tokens", "tokens consumed so far", MetricNature::Result},
    {"loss", "nats a token", MetricNature::Result},
    {"bits_per_byte", "bits", MetricNature::Derived},
    {"grad_norm", "", MetricNature::Result},
    {"unit_grad_norm", "", MetricNature::Result},
    {"lr", "", MetricNature::Result},
    {"nonfinite", "names", MetricNature::Result},
    {"skipped_in_a_row", "steps", MetricNature::Result},
    {"fault", "name", MetricNature::Derived},
    {"eval_loss", "nats a token", MetricNature::Result},
    {"eval_bits_per_byte", "bits", MetricNature::Derived},
    {"step_ms", "ms: min, median, max over the ranks", MetricNature::Measurement},
    {"tokens_per_s", "of all ranks", MetricNature::Measurement},
    {"tflops", "a rank", MetricNature::Measurement},
    {"mfu", "share of logging.peak_tflops", MetricNature::Measurement},
    {"mem_peak_bytes", "bytes of the largest rank", MetricNature::Measurement},
    {"data_ms", "ms, rank 0", MetricNature::Measurement},
    {"comm_ms", "ms that computation waited for communication, rank 0", MetricNature::Measurement},
    {"comm_exposed_ms", "the same, by axis", MetricNature::Measurement},
    {"comm_busy_ms", "ms in which any was under way, rank 0", MetricNature::Measurement},
    {"comm_bytes", "bytes and calls, rank 0", MetricNature::Measurement},
    {"checkpoint_stall_ms", "ms, rank 0", MetricNature::Measurement},
    {"moe.aux_loss", "", MetricNature::Result},
    {"moe.z_loss", "", MetricNature::Result},
    {"moe.layer", "index", MetricNature::Result},
    {"moe.count_total", "pairs", MetricNature::Result},
    {"moe.counts", "pairs of each expert", MetricNature::Result},
    {"moe.bias", "of each expert", MetricNature::Result},
    {"moe.max_vio", "", MetricNature::Result},
    {"moe.dead", "experts", MetricNature::Result},
    {"moe.bias_min", "", MetricNature::Result},
    {"moe.bias_max", "", MetricNature::Result},
    {"moe.bias_finite", "", MetricNature::Result},
    {"moe.dropped", "pairs", MetricNature::Result},
    {"moe.layers", "", MetricNature::Result},
    {"moe", "", MetricNature::Result},
    {"moe.min_gap", "of scores; rank 0", MetricNature::Measurement},
}};

/// Local. The row of a metric, or nullptr.
constexpr const MetricInfo* find_metric(std::string_view name) {
  for (auto& metric : kMetrics) {
    if (metric.name == name) return &metric;
  }
  return nullptr;
}

}  // namespace meshard
