#include "plan/step_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "comm/ledger.h"
#include "plan/sharding.h"
#include "plan/step_schedule.h"

namespace meshard {

namespace {

Link link_of(const std::optional<Link>& link, const char* key, Axis axis, const Hardware& hardware) {
  if (link) return *link;
  throw ConfigError(
      fmt::format("hardware {}: axis {} runs {} nodes of {} ranks, but the file has no `{}`; add it, or "
                  "choose another mesh",
                  hardware.name, axis_name(axis), std::string_view(key) == "node" ? "within" : "between",
                  hardware.ranks_per_node, key));
}

void add_exposed(StepPrediction& step) {
  double free_at = 0.0;
  for (std::size_t id = 0; id < step.operations.size(); ++id) {
    auto& operation = step.operations[id];
    auto [begin, end] = step.spans[id];
    if (operation.lane != Lane::Compute) {
      if (operation.axis) step.axes[*operation.axis].busy_s += end - begin;
      continue;
    }
    auto waited_for = kNothing;
    for (auto before : operation.after) {
      if (before != kNothing && (waited_for == kNothing || step.spans[before].end > step.spans[waited_for].end)) {
        waited_for = before;
      }
    }
    if (begin > free_at && waited_for != kNothing && step.operations[waited_for].axis) {
      step.axes[*step.operations[waited_for].axis].exposed_s += begin - free_at;
    }
    (operation.axis ? step.axes[*operation.axis].exposed_s : step.compute_s) += end - begin;
    free_at = end;
  }
}

}  // namespace

AxisLink axis_link(const MeshShape& mesh, Axis axis, const Hardware& hardware) {
  std::map<int, int> per_node;
  for (auto rank : mesh.members(axis, 0)) ++per_node[rank / hardware.ranks_per_node];
  int ranks = mesh.size(axis), nodes = static_cast<int>(per_node.size());
  if (ranks == 1) return {};
  int together = ranks;  // members in the node that has the fewest
  for (auto& [node, members] : per_node) together = std::min(together, members);
  AxisLink way{.ranks = ranks};
  auto inside = together > 1 || nodes == 1 || ranks > nodes ? link_of(hardware.node, "node", axis, hardware) : Link{};
  way.latency_s = (ranks - nodes) * inside.latency_us * 1e-6;
  if (nodes == 1) {
    way.link = LinkKind::Node;
    way.bytes_per_s = way.exchange_bytes_per_s = inside.gb_per_s * 1e9;
    return way;
  }
  auto between = link_of(hardware.network, "network", axis, hardware);
  way.link = LinkKind::Network;
  way.latency_s += (nodes - 1) * between.latency_us * 1e-6;
  way.bytes_per_s = together * between.gb_per_s * 1e9;
  if (together > 1) way.bytes_per_s = std::min(way.bytes_per_s, inside.gb_per_s * 1e9);
  way.exchange_bytes_per_s = between.gb_per_s * 1e9 * (ranks - 1) / (ranks - together);
  if (together > 1) {
    way.exchange_bytes_per_s = std::min(way.exchange_bytes_per_s, inside.gb_per_s * 1e9 * (ranks - 1) / (together - 1));
  }
  return way;
}

StepPrediction predict_step(const Plan& plan, const Hardware& hardware) {
  StepPrediction step;
  step.operations = step_operations(plan, hardware);
  step.spans = run_lanes(step.operations);
  for (auto& span : step.spans) step.seconds = std::max(step.seconds, span.end);
  add_exposed(step);
  auto& train = plan.config.train;
  step.tokens_per_s = static_cast<double>(train.global_batch_size * train.seq_len) / step.seconds;
  step.tflops = step.tokens_per_s * flops_per_token(plan.config, plan.active_parameters) / plan.mesh.ranks() / 1e12;
  step.mfu = step.tflops * 1e12 /
             (hardware.peak_tflops ? *hardware.peak_tflops * 1e12 : hardware.flops(plan.config.precision.param));
  return step;
}

double least_step_seconds(const Plan& plan, const Hardware& hardware) {
  double seconds = 0.0;
  for (auto& operation : step_operations(plan, hardware)) {
    if (operation.lane == Lane::Compute) seconds += operation.fixed_s;
  }
  return seconds;
}

}  // namespace meshard
