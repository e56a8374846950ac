#include "plan/unsharded_peak.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <utility>

#include "sharding/storage.h"

namespace meshard {

namespace {

/// The pool of one rank through a step, as the runtime goes (sharding/DESIGN.md section 8).
class PoolOfARank {
 public:
  PoolOfARank(const std::vector<PlannedUnit>& units, int prefetch, const Precision& precision)
      : prefetch_(prefetch), precision_(precision) {
    const PlannedUnit* experts = nullptr;
    for (auto& unit : units) {
      switch (unit.kind) {
        case ModelUnit::Kind::RoutedExperts:
          experts = &unit;
          continue;
        case ModelUnit::Kind::Root:
          root_ = &unit;
          continue;
        case ModelUnit::Kind::Embedding:
        case ModelUnit::Kind::Layer:
        case ModelUnit::Kind::Head:
          stops_.push_back({&unit, std::exchange(experts, nullptr)});
      }
    }
  }

  // The first microbatch records the order, by which the second one prefetches.
  std::int64_t peak() {
    for (bool recorded : {false, true}) {
      forward(recorded);
      backward(recorded);
    }
    return sizes_.allocated();
  }

 private:
  /// A unit on the way, with the experts that run within it.
  struct Stop {
    const PlannedUnit* unit;
    const PlannedUnit* within;
  };
  using Order = std::vector<const PlannedUnit*>;
  using Blocks = std::vector<std::int64_t>;

  void forward(bool recorded) {
    auto order = order_of(stops_);
    auto reads = [](const PlannedUnit&) { return true; };
    std::size_t position = 0;
    if (root_) enter(order, position++, recorded, reads);
    for (auto& stop : stops_) {
      for (std::size_t i = 0; i < units_of(stop).size(); ++i) enter(order, position++, recorded, reads);
      for (auto* unit : units_of(stop) | std::views::reverse) {
        if (unit->keep != Unit::Keep::Gathered) release(*unit);
      }
    }
  }

  void backward(bool recorded) {
    auto back = stops_;
    std::ranges::reverse(back);
    auto order = order_of(back);
    auto reads = [](const PlannedUnit& unit) { return unit.keep != Unit::Keep::Unneeded; };
    std::size_t position = 0;
    auto begin = [&](const PlannedUnit& unit) {
      enter(order, position++, recorded, reads);
      open_sinks(unit);
    };
    if (root_) begin(*root_);
    for (auto& stop : back) {
      for (auto* unit : units_of(stop)) begin(*unit);
      for (auto* unit : units_of(stop) | std::views::reverse) end(*unit);
    }
    if (root_) end(*root_);
    give_back(on_the_wire_);
  }

  Order order_of(const std::vector<Stop>& stops) const {
    Order order;
    if (root_) order.push_back(root_);
    for (auto& stop : stops) {
      for (auto* unit : units_of(stop)) order.push_back(unit);
    }
    return order;
  }

  static Order units_of(const Stop& stop) { return stop.within ? Order{stop.unit, stop.within} : Order{stop.unit}; }

  template <class Reads>
  void enter(const Order& order, std::size_t position, bool recorded, Reads reads) {
    auto last = std::min(position + (recorded ? prefetch_ : 0), order.size() - 1);
    for (auto i = position; i <= last; ++i) {
      if (reads(*order[i])) gather(*order[i]);
    }
  }

  void gather(const PlannedUnit& unit) {
    if (!unit.placement.gathers() || !gathered_[&unit].empty()) return;
    for (auto& group : unit.groups) gathered_[&unit].push_back(take(group, precision_.param));
  }

  void release(const PlannedUnit& unit) { give_back(gathered_[&unit]); }

  void open_sinks(const PlannedUnit& unit) {
    auto& grads = unit.placement.grads;
    if (std::ranges::find(grads, Placement::Flat) == grads.end()) return;
    for (auto& group : unit.groups) {
      if (group.requires_grad) sinks_[&unit].push_back(take(group, precision_.reduce));
    }
  }

  // One unit's gradients are on the wire while the next one's are filled.
  void end(const PlannedUnit& unit) {
    release(unit);
    give_back(on_the_wire_);
    on_the_wire_ = std::exchange(sinks_[&unit], {});
  }

  std::int64_t take(const GroupPlan& group, at::ScalarType dtype) {
    return sizes_.take(group.layout.size() * static_cast<std::int64_t>(at::elementSize(dtype)));
  }

  void give_back(Blocks& blocks) {
    for (auto block : std::exchange(blocks, {})) sizes_.give_back(block);
  }

  int prefetch_;
  Precision precision_;
  const PlannedUnit* root_ = nullptr;
  std::vector<Stop> stops_;
  BlockSizes sizes_;
  std::map<const PlannedUnit*, Blocks> gathered_, sinks_;
  Blocks on_the_wire_;
};

}  // namespace

std::int64_t unsharded_peak(const std::vector<PlannedUnit>& units, int prefetch, const Precision& precision) {
  return PoolOfARank(units, prefetch, precision).peak();
}

}  // namespace meshard
