#include "plan/step_schedule.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "model/options.h"
#include "plan/compute_time.h"
#include "plan/sharding.h"
#include "plan/step_issuer.h"
#include "plan/traffic.h"

namespace meshard {

namespace {

/// A layer on the way of a forward, and its routed experts.
struct LayerStop {
  int layer;
  int experts = -1;  ///< -1: none
};

class Schedule : StepIssuer {
 public:
  Schedule(const Plan& plan, const Hardware& hardware)
      : StepIssuer(plan.mesh, hardware),
        plan_(plan),
        hardware_(hardware),
        config_(plan.config),
        precision_(precision_of(plan.config)),
        times_(compute_times(plan.config, plan.mesh.expert(), hardware)),
        recompute_(plan.config.train.activation_checkpoint == TrainConfig::Checkpointing::Full),
        states_(plan.units.size()) {
    find_stops();
  }

  std::vector<StepOperation> whole_step() {
    refresh();
    auto microbatches = config_.accumulation_steps(plan_.mesh.data_parallel_ranks());
    for (std::int64_t microbatch = 0; microbatch < microbatches; ++microbatch) {
      last_microbatch_ = microbatch + 1 == microbatches;
      forward();
      backward();
    }
    optimizer();
    return take();
  }

 private:
  struct UnitState {
    bool gathered = false;
    Ids gathers, refreshes, reductions, rest;  ///< issued and not yet waited for
  };

  // -- the units
  // -------------------------------------------------------------------------------------------------------

  void find_stops() {
    int experts = -1;
    for (int unit = 0; unit < std::ssize(plan_.units); ++unit) {
      switch (plan_.units[unit].kind) {
        case ModelUnit::Kind::RoutedExperts:
          experts = unit;
          break;
        case ModelUnit::Kind::Layer:
          stops_.push_back({unit, std::exchange(experts, -1)});
          break;
        case ModelUnit::Kind::Embedding:
          first_ = unit;
          break;
        case ModelUnit::Kind::Head:
          last_ = unit;
          break;
        case ModelUnit::Kind::Root:  // of a tied model: both
          first_ = last_ = unit;
          break;
      }
    }
    forward_order_.push_back(first_);
    for (auto& stop : stops_) add_stop(forward_order_, stop);
    if (last_ != first_) forward_order_.push_back(last_);
    backward_order_.push_back(last_);
    for (auto& stop : stops_ | std::views::reverse) add_stop(backward_order_, stop);
  }

  static void add_stop(std::vector<int>& order, const LayerStop& stop) {
    order.push_back(stop.layer);
    if (stop.experts >= 0) order.push_back(stop.experts);
  }

  // -- parameters
  // --------------------------------------------------------------------------------------------------------

  std::int64_t param_bytes() const { return static_cast<std::int64_t>(at::elementSize(precision_.param)); }
  std::int64_t wire_bytes() const { return static_cast<std::int64_t>(at::elementSize(precision_.reduce)); }

  std::int64_t held_by(const GroupPlan& group, const PlannedUnit& unit, const Placements& placements) const {
    return held(group.layout.size(), unit.placement, placements, plan_.mesh);
  }

  /// The optimizer's parts become the model's, in the order in which the forward needs them.
  void refresh() {
    for (auto index : forward_order_) {
      auto& unit = plan_.units[index];
      auto& placement = unit.placement;
      for (auto& group : unit.groups) {
        if (!group.requires_grad) continue;
        for (std::size_t axis = 0; axis < placement.axes.size(); ++axis) {
          if (placement.optimizer[axis] != Placement::Flat || placement.params[axis] != Placement::Replicate) continue;
          auto full = held_by(group, unit, placement.params) * param_bytes();
          states_[index].refreshes.push_back(all_gather(index, Lane::Outer, placement.axes[axis], full, {}));
        }
      }
    }
  }

  void start_gather(int index) {
    auto& unit = plan_.units[index];
    auto& state = states_[index];
    if (!unit.placement.gathers() || std::exchange(state.gathered, true)) return;
    Ids after;
    if (!state.refreshes.empty()) after.push_back(state.refreshes.back());  // those before it are on the same lane
    for (auto& group : unit.groups) {
      for (std::size_t axis = 0; axis < unit.placement.axes.size(); ++axis) {
        if (unit.placement.params[axis] != Placement::Flat) continue;
        auto full = group.layout.size() * param_bytes();
        state.gathers.push_back(all_gather(index, Lane::Gather, unit.placement.axes[axis], full, after));
      }
    }
  }

  /// The unit `position` of an order begins: its parameters must be there, those of the next ones come.
  void enter(const std::vector<int>& order, int unit) {
    auto position = std::ranges::find(order, unit) - order.begin();
    auto last = std::min<std::ptrdiff_t>(position + config_.parallel.prefetch, std::ssize(order) - 1);
    for (auto at = position; at <= last; ++at) start_gather(order[at]);
    wait_for_parameters(unit);
  }
  void wait_for_parameters(int unit) {
    start_gather(unit);
    wait(states_[unit].refreshes);
    wait(states_[unit].gathers);
  }
  void release(int unit) { states_[unit].gathered = false; }

  // -- forward
  // -----------------------------------------------------------------------------------------------------------

  void forward() {
    enter(forward_order_, first_);
    compute("forward", first_, times_.embedding.forward);
    if (first_ != last_) release(first_);
    for (auto& stop : stops_) {
      enter(forward_order_, stop.layer);
      layer_forward(stop, /*again=*/false, [&] { enter(forward_order_, stop.experts); });
      if (stop.experts >= 0) release(stop.experts);
      release(stop.layer);
    }
    if (first_ != last_) enter(forward_order_, last_);
    compute("forward", last_, times_.head.forward);
  }

  /// `enter_experts` sees to their parameters.
  template <class Enter>
  void layer_forward(const LayerStop& stop, bool again, Enter enter_experts) {
    auto* what = again ? "recompute" : "forward";
    if (stop.experts < 0) return compute(what, stop.layer, times_.attention.forward + times_.dense.forward);
    compute(what, stop.layer, times_.attention.forward + times_.router.forward);
    if (!again) exchange_counts(stop.layer);
    exchange(stop.layer);
    enter_experts();
    compute(what, stop.experts, times_.routed.forward);
    exchange(stop.layer);
    compute(what, stop.layer, times_.shared.forward);
  }

  void exchange_counts(int unit) {
    if (plan_.mesh.expert() == 1) return;
    auto bytes = config_.model.moe->n_routed_experts * static_cast<std::int64_t>(sizeof(std::int64_t));
    Ids counts{all_to_all(unit, bytes)};
    wait(counts);
  }

  /// Rows to the experts, or back.
  void exchange(int unit) {
    auto ranks = plan_.mesh.expert();
    if (ranks == 1) return;
    auto& model = config_.model;
    auto rows = config_.train.micro_batch_size * config_.train.seq_len * model.moe->num_experts_per_tok;
    auto bytes = rows * (ranks - 1) / ranks * model.hidden_size * param_bytes();
    Ids sent{all_to_all_v(unit, bytes)};
    wait(sent);
  }

  // -- backward
  // ----------------------------------------------------------------------------------------------------------

  /// The head is still gathered; the embedding's backward does not read it.
  void backward() {
    enter(backward_order_, last_);
    compute("backward", last_, times_.head.backward);
    if (first_ != last_) end_backward(last_);
    for (auto& stop : stops_ | std::views::reverse) {
      enter(backward_order_, stop.layer);
      if (recompute_) layer_forward(stop, /*again=*/true, [&] { wait_for_parameters(stop.experts); });
      layer_backward(stop);
    }
    compute("backward", first_, times_.embedding.backward);
    end_backward(first_);
    retire_reductions();
  }

  void layer_backward(const LayerStop& stop) {
    auto own = times_.attention.backward + (stop.experts < 0 ? times_.dense.backward : times_.router.backward);
    if (stop.experts >= 0) {
      compute("backward", stop.layer, times_.shared.backward);
      exchange(stop.layer);
      enter(backward_order_, stop.experts);
      compute("backward", stop.experts, times_.routed.backward);
      end_backward(stop.experts);
      exchange(stop.layer);
    }
    compute("backward", stop.layer, own);
    end_backward(stop.layer);
  }

  /// Lets go of the parameters and sends the gradients; one unit's are on the wire at a time.
  void end_backward(int index) {
    release(index);
    retire_reductions();
    auto& unit = plan_.units[index];
    auto& placement = unit.placement;
    auto& state = states_[index];
    for (auto& group : unit.groups) {
      if (!group.requires_grad) continue;
      Ids before;
      auto held_now = group.layout.size();
      for (auto axis = placement.axes.size(); axis-- > 0;) {
        if (placement.grads[axis] != Placement::Flat) continue;
        before = {reduce_scatter(index, Lane::Reduce, placement.axes[axis], held_now * wire_bytes(), before)};
        held_now /= plan_.mesh.size(placement.axes[axis]);
        state.reductions.push_back(before[0]);
      }
    }
    in_flight_ = index;
    if (state.reductions.empty()) retire_reductions();
  }

  void retire_reductions() {
    if (in_flight_ < 0) return;
    auto index = std::exchange(in_flight_, -1);
    auto& unit = plan_.units[index];
    wait(states_[index].reductions);
    std::int64_t elements = 0;
    for (auto& group : unit.groups) elements += held_by(group, unit, unit.placement.grads);
    compute("add", index, memory_time(12.0 * static_cast<double>(elements), 1, hardware_));
    if (!last_microbatch_) return;
    for (auto& group : unit.groups) {
      if (group.requires_grad) reduce_rest(index, group);
    }
  }

  /// What a step reduces once, behind the unit's reduction of the last microbatch: inner axis first.
  void reduce_rest(int index, const GroupPlan& group) {
    auto& unit = plan_.units[index];
    auto& placement = unit.placement;
    auto current = held_by(group, unit, placement.grads);
    Ids before;
    for (auto axis = placement.axes.size(); axis-- > 0;) {
      if (placement.grads[axis] != Placement::Partial) continue;
      auto lane = placement.axes[axis] == Axis::DpOuter ? Lane::Outer : Lane::Reduce;
      bool scatters = placement.optimizer[axis] == Placement::Flat;
      auto bytes = current * wire_bytes();
      before = {scatters ? reduce_scatter(index, lane, placement.axes[axis], bytes, before)
                         : all_reduce(index, lane, placement.axes[axis], bytes, before)};
      if (scatters) current /= plan_.mesh.size(placement.axes[axis]);
      states_[index].rest.push_back(before[0]);
    }
  }

  // -- the end of the step
  // ---------------------------------------------------------------------------------------------

  void optimizer() {
    for (auto& state : states_) wait(state.rest);
    if (auto& moe = config_.model.moe; moe && plan_.mesh.ranks() > 1) {
      auto bytes = plan_.moe_layers * moe->n_routed_experts * static_cast<std::int64_t>(sizeof(std::int64_t));
      Ids counts{all_reduce(-1, Lane::Reduce, Axis::World, bytes, {})};
      wait(counts);
    }
    double main = 0.0, gradients = 0.0;
    for (auto& unit : plan_.units) {
      for (auto& group : unit.groups) {
        if (!group.requires_grad) continue;
        main += static_cast<double>(held_by(group, unit, unit.placement.optimizer));
        gradients += static_cast<double>(held_by(group, unit, unit.placement.grads));
      }
    }
    auto kernels = static_cast<int>(plan_.units.size());
    compute("norm", -1, memory_time(4.0 * main, kernels, hardware_));
    if (plan_.mesh.ranks() > 1) {
      Ids norm{control()};
      wait(norm);
    }
    // Clipping reads and writes the gradient; the update reads it and reads and writes weights and state; zeros.
    auto state = config_.optimizer.type == OptimizerConfig::Type::AdamW ? 16.0 : 0.0;
    auto model = precision_.param == precision_.main_param ? 0.0 : static_cast<double>(param_bytes());
    compute("optimizer", -1,
            memory_time((8.0 + 12.0 + state + model) * main + 4.0 * gradients, 2 * kernels, hardware_));
  }

  const Plan& plan_;
  const Hardware& hardware_;
  const Config& config_;
  Precision precision_;
  ComputeTimes times_;
  bool recompute_, last_microbatch_ = false;
  std::vector<LayerStop> stops_;
  std::vector<int> forward_order_, backward_order_;
  int first_ = -1, last_ = -1;  ///< with the embedding, and with the head: of a tied model one
  int in_flight_ = -1;
  std::vector<UnitState> states_;
};

}  // namespace

std::vector<StepOperation> step_operations(const Plan& plan, const Hardware& hardware) {
  return Schedule(plan, hardware).whole_step();
}

}  // namespace meshard
