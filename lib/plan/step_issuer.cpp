#include "plan/step_issuer.h"

#include <algorithm>

#include "base/error.h"
#include "comm/ledger.h"

namespace meshard {

StepIssuer::StepIssuer(const MeshShape& mesh, const Hardware& hardware) : hardware_(hardware) {
  for (auto& info : kAxes) links_[info.axis] = axis_link(mesh, info.axis, hardware);
}

OperationId StepIssuer::issue(StepOperation operation, const Ids& after) {
  if (after.size() > operation.after.size()) throw LogicError("an operation waits for too many others");
  std::ranges::copy(after, operation.after.begin());
  operations_.push_back(operation);
  return static_cast<OperationId>(operations_.size()) - 1;
}

void StepIssuer::compute(const char* what, int unit, double seconds) {
  last_compute_ = issue({.what = what, .unit = unit, .fixed_s = seconds}, waited_);
  waited_.clear();
}

OperationId StepIssuer::collective(const char* what, int unit, Lane lane, Axis axis, std::int64_t bytes, double reduced,
                                   Ids after) {
  auto& link = links_.at(axis);
  auto rate = lane == Lane::Exchange ? link.exchange_bytes_per_s : link.bytes_per_s;
  auto ways = reduced > 0.0 && reduced < 1.0 ? 2 : 1;  // an all-reduce: reduced one way around, gathered another
  if (last_compute_ != kNothing) after.push_back(last_compute_);
  auto id = issue({.what = what,
                   .unit = unit,
                   .lane = lane,
                   .axis = axis,
                   .fixed_s = hardware_.collective_us * 1e-6 + ways * link.latency_s,
                   .transfer_s = static_cast<double>(bytes) / rate,
                   .link = link.link,
                   .bytes = bytes},
                  after);
  if (auto& core = hardware_.core) {
    auto gigabytes = static_cast<double>(bytes) / 1e9;
    core_seconds_[id] = gigabytes * (reduced / core->reduce_gb_per_s + (1.0 - reduced) / core->gather_gb_per_s);
  }
  return id;
}

OperationId StepIssuer::all_gather(int unit, Lane lane, Axis axis, std::int64_t full_bytes, const Ids& after) {
  return collective("all_gather", unit, lane, axis, gather_bytes(full_bytes, ranks(axis)), 0.0, after);
}

OperationId StepIssuer::reduce_scatter(int unit, Lane lane, Axis axis, std::int64_t full_bytes, const Ids& after) {
  return collective("reduce_scatter", unit, lane, axis, gather_bytes(full_bytes, ranks(axis)), 1.0, after);
}

OperationId StepIssuer::all_reduce(int unit, Lane lane, Axis axis, std::int64_t full_bytes, const Ids& after) {
  return collective("all_reduce", unit, lane, axis, all_reduce_bytes(full_bytes, ranks(axis)), 0.5, after);
}

OperationId StepIssuer::all_to_all(int unit, std::int64_t full_bytes) {
  auto bytes = gather_bytes(full_bytes, ranks(Axis::Expert));
  return collective("all_to_all", unit, Lane::Exchange, Axis::Expert, bytes, 0.0, {});
}

OperationId StepIssuer::all_to_all_v(int unit, std::int64_t bytes) {
  return collective("all_to_all_v", unit, Lane::Exchange, Axis::Expert, bytes, 0.0, {});
}

OperationId StepIssuer::control() {
  return collective("control", -1, Lane::Reduce, Axis::World, 0, 0.5, {});
}

void StepIssuer::wait(Ids& operations) {
  for (auto id : operations) {
    if (auto core = core_seconds_.find(id); core != core_seconds_.end() && core->second > 0.0) {
      auto& from = operations_[id];
      last_compute_ = issue({.what = from.what, .unit = from.unit, .axis = from.axis, .fixed_s = core->second}, {});
    }
    waited_.push_back(id);
    if (waited_.size() == StepOperation{}.after.size()) compute("wait", -1, 0.0);
  }
  operations.clear();
}

}  // namespace meshard
