#include "plan/unsharded_peak.h"

#include <algorithm>

namespace meshard {

namespace {

// A unit on the way of a forward; experts run within their layer.
struct Stop {
  std::int64_t gathered = 0;   // elements, 0 where parameters are replicated
  std::int64_t gradients = 0;  // elements, 0 where nothing is reduced per microbatch
  bool within_previous = false;
};

std::int64_t elements(const PlannedUnit& unit) {
  std::int64_t sum = 0;
  for (auto& group : unit.groups) sum += group.layout.size();
  return sum;
}

Stop stop_at(const PlannedUnit& unit, bool within_previous) {
  auto& grads = unit.placement.grads;
  bool reduces = std::ranges::find(grads, Placement::Flat) != grads.end();
  return {unit.placement.gathers() ? elements(unit) : 0, reduces ? elements(unit) : 0, within_previous};
}

// Units in the order of a forward, without the root: a layer, then its experts.
std::vector<Stop> forward_order(const std::vector<PlannedUnit>& units) {
  std::vector<Stop> order;
  for (std::size_t i = 0; i + 1 < units.size(); ++i) {
    if (units[i].kind != ModelUnit::Kind::RoutedExperts) {
      order.push_back(stop_at(units[i], false));
      continue;
    }
    order.push_back(stop_at(units[i + 1], false));
    order.push_back(stop_at(units[i], true));
    ++i;
  }
  return order;
}

}  // namespace

std::int64_t unsharded_peak(const std::vector<PlannedUnit>& units, int prefetch, const Precision& precision) {
  auto order = forward_order(units);
  std::int64_t gathered = 0, gradients = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    auto enclosing = order[i].within_previous ? i - 1 : i;
    auto last = std::min(i + prefetch, order.size() - 1);
    std::int64_t sum = 0;
    for (auto j = enclosing; j <= last; ++j) sum += order[j].gathered;
    gathered = std::max(gathered, sum);

    // Backward comes from above: a layer collects, and its experts, while the layer above is on the wire.
    sum = 0;
    for (auto j = enclosing; j <= i; ++j) sum += order[j].gradients;
    for (auto above = i + 1; above < order.size(); ++above) {
      if (order[above].within_previous) continue;
      sum += order[above].gradients;
      break;
    }
    gradients = std::max(gradients, sum);
  }
  auto root = stop_at(units.back(), false);
  return (root.gathered + gathered) * static_cast<std::int64_t>(at::elementSize(precision.param)) +
         (root.gradients + gradients) * static_cast<std::int64_t>(at::elementSize(precision.reduce));
}

}  // namespace meshard
