#include "plan/trace.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace meshard {

namespace {

using Json = nlohmann::ordered_json;

Json name_event(const char* what, int lane, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", 0}, {"tid", lane}, {"args", {{"name", name}}}};
}

Json sort_event(int lane) {
  return {{"name", "thread_sort_index"}, {"ph", "M"}, {"pid", 0}, {"tid", lane}, {"args", {{"sort_index", lane}}}};
}

Json span_event(const StepOperation& operation, const Span& span, const Plan& plan) {
  auto unit = operation.unit < 0 ? std::string() : plan.units[operation.unit].name;
  Json args = Json::object();
  if (!unit.empty()) args["unit"] = unit;
  if (operation.axis) args["axis"] = axis_name(*operation.axis);
  if (operation.axis && operation.lane != Lane::Compute) args["bytes"] = operation.bytes;
  return {{"name", unit.empty() ? operation.what : fmt::format("{} {}", operation.what, unit)},
          {"cat", operation.axis ? "communication" : "computation"},
          {"ph", "X"},
          {"pid", 0},
          {"tid", static_cast<int>(operation.lane)},
          {"ts", span.begin * 1e6},
          {"dur", (span.end - span.begin) * 1e6},
          {"args", std::move(args)}};
}

}  // namespace

Json trace_json(const StepPrediction& step, const Plan& plan) {
  auto events = Json::array();
  events.push_back(
      name_event("process_name", 0, fmt::format("{}, one rank of {}", plan.config.run.name, plan.mesh.ranks())));
  for (int lane = 0; lane < static_cast<int>(kLaneNames.size()); ++lane) {
    events.push_back(name_event("thread_name", lane, std::string(kLaneNames[lane])));
    events.push_back(sort_event(lane));
  }
  for (std::size_t id = 0; id < step.operations.size(); ++id) {
    auto& span = step.spans[id];
    if (span.end > span.begin) events.push_back(span_event(step.operations[id], span, plan));
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

}  // namespace meshard
