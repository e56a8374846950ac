#include "plan/timeline.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace meshard {

namespace {

double share(double part, double whole) {
  return whole > 0.0 ? 100.0 * part / whole : 0.0;
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.{}f} ms", 1e3 * seconds, seconds < 0.1 ? 2 : 0);
}

const char* link_text(const Plan& plan, Axis axis, const Hardware& hardware) {
  return axis_link(plan.mesh, axis, hardware).link == LinkKind::Network ? "between nodes" : "within a node";
}

}  // namespace

std::string timeline_text(const StepPrediction& step, const Plan& plan, const Hardware& hardware) {
  auto rate = hardware.flops(plan.config.precision.param) / 1e12;
  auto text = fmt::format(
      "hardware    {}: {:.4g} TFLOP/s {} a rank, {} ranks a node\n"
      "step        {}, {} tokens/s, {:.4g} TFLOP/s a rank, {:.1f} % of {:.4g}{}\n"
      "computes    {} ({:.1f} %)\n",
      hardware.name, rate, to_string(plan.config.precision.param), hardware.ranks_per_node, milliseconds(step.seconds),
      human_count(static_cast<std::int64_t>(step.tokens_per_s)), step.tflops, 100.0 * step.mfu,
      hardware.peak_tflops.value_or(rate), hardware.peak_tflops ? " (mfu)" : ", the achieved rate",
      milliseconds(step.compute_s), share(step.compute_s, step.seconds));
  text += "communication of a rank\n";
  if (step.axes.empty()) text += "  none\n";
  for (auto& [axis, time] : step.axes) {
    text += fmt::format("  {:<10} {:<14} busy {:>10}, exposed {:>10} ({:.1f} % of the step)\n", axis_name(axis),
                        link_text(plan, axis, hardware), milliseconds(time.busy_s), milliseconds(time.exposed_s),
                        share(time.exposed_s, step.seconds));
  }
  auto limit = static_cast<std::int64_t>(hardware.memory_gb * 1e9);
  text += fmt::format("memory      {} of {} a rank{}", human_bytes(plan.bytes.total()), human_bytes(limit),
                      plan.bytes.total() > limit ? ": TOO MUCH" : "");
  return text;
}

nlohmann::ordered_json timeline_json(const StepPrediction& step, const Plan& plan, const Hardware& hardware) {
  auto axes = nlohmann::ordered_json::object();
  for (auto& [axis, time] : step.axes) {
    axes[std::string(axis_name(axis))] = {{"busy_s", time.busy_s}, {"exposed_s", time.exposed_s}};
  }
  return {{"hardware", hardware.name},
          {"step_s", step.seconds},
          {"compute_s", step.compute_s},
          {"tokens_per_s", step.tokens_per_s},
          {"tflops", step.tflops},
          {"mfu", step.mfu},
          {"axes", std::move(axes)},
          {"memory_bytes", plan.bytes.total()},
          {"memory_limit_bytes", static_cast<std::int64_t>(hardware.memory_gb * 1e9)}};
}

}  // namespace meshard
