#include "sharding/context.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>

#include "base/error.h"
#include "sharding/hooks.h"

namespace meshard {

namespace {
// Units whose gradients may be on the way while the next unit fills its own: two buffers in all, as `plan` counts them.
constexpr std::size_t kReductionsInFlight = 1;

thread_local bool a_scope_is_open = false;
}  // namespace

ShardingContext::ShardingContext(Module& root, Mesh& mesh, int prefetch)
    : root_(root), mesh_(mesh), prefetch_(prefetch), names_(root), pool_(mesh.world().device()) {
  if (a_scope_is_open)
    throw LogicError("a sharding scope is open already: shard one model's root before the next model");
  a_scope_is_open = true;
}

ShardingContext::~ShardingContext() {
  close_scope();
  for (auto& unit : units_) unit->module_->set_hooks(nullptr);
}

void ShardingContext::close_scope() {
  if (scope_open_) a_scope_is_open = false;
  scope_open_ = false;
}

CommAxes ShardingContext::communicators(const GroupPlacement& placement) const {
  CommAxes axes;
  for (auto axis : placement.axes) axes.push_back(&mesh_.axis(axis));
  return axes;
}

Unit& ShardingContext::fully_shard(Module& module, const ShardOptions& options) {
  if (!scope_open_) throw LogicError("the root is sharded: this scope is closed");
  if (module.has_hooks()) throw LogicError(fmt::format("module '{}' is sharded already", names_.of(module)));
  auto placement =
      options.experts ? place_experts(options.strategy, mesh_.shape()) : place_dense(options.strategy, mesh_.shape());
  auto axes = communicators(placement);
  int shards = options.experts ? mesh_.shape().expert_dp() : mesh_.shape().ranks();
  auto device = mesh_.world().device();

  auto unit = std::make_unique<Unit>();
  unit->name_ = &module == &root_ ? "root" : names_.of(module);
  unit->module_ = &module;
  unit->is_root_ = &module == &root_;
  unit->keep_gathered_ = options.keep_gathered.value_or(unit->is_root_);
  unit->initialised_ = true;
  for (auto& plan : plan_groups(module, names_, unit_modules_, owned_, shards)) {
    unit->groups_.push_back(std::make_unique<ParamGroup>(plan, unit->name_, placement, axes, options.precision,
                                                         options.grad_divisor, device, pool_));
    if (unit->groups_.back()->from_meta()) unit->initialised_ = false;
  }

  for (auto& group : unit->groups_) {
    group->install();
    for (auto& entry : group->plan().parameters) owned_.insert(entry.parameter.id());
  }
  materialise_buffers(module, unit_modules_, device);
  unit_modules_.insert(&module);
  module.set_hooks(std::make_unique<UnitHooks>(*this, *unit));
  units_.push_back(std::move(unit));
  if (units_.back()->is_root_) close_scope();
  return *units_.back();
}

// -- order ------------------------------------------------------------------------------------------------------------

void ShardingContext::Order::begin() {
  position = 0;
}

void ShardingContext::Order::enter(Unit* unit) {
  bool as_recorded = position < units.size() && units[position] == unit;
  if (!as_recorded) {
    units.resize(position);
    units.push_back(unit);
    complete = false;
  }
  ++position;
}

void ShardingContext::Order::end() {
  units.resize(position);
  complete = true;
}

Unit* ShardingContext::Order::ahead(int distance) const {
  auto index = position + distance - 1;
  return complete && index < units.size() ? units[index] : nullptr;
}

// -- gather and release -----------------------------------------------------------------------------------------------

void ShardingContext::gather(Unit& unit, const Order& order) {
  for (auto& group : unit.groups_) group->start_gather();
  for (int distance = 1; distance <= prefetch_; ++distance) {
    if (auto* next = order.ahead(distance)) {
      for (auto& group : next->groups_) group->start_gather();
    }
  }
  for (auto& group : unit.groups_) group->finish_gather();
}

void ShardingContext::release(Unit& unit) {
  for (auto& group : unit.groups_) group->release();
}

// A prefetched unit that was not used after all must not keep its storage, nor stale weights.
void ShardingContext::release_unused() {
  for (auto& unit : units_) {
    if (unit->state_ == Unit::State::Resting && !unit->keep_gathered_) release(*unit);
  }
}

// -- forward ----------------------------------------------------------------------------------------------------------

at::Tensor ShardingContext::before_forward(Unit& unit, const at::Tensor& input) {
  if (scope_open_) throw LogicError("forward before the root was sharded: call fully_shard on the root last");
  if (!unit.initialised_) throw LogicError(fmt::format("parameters of unit {} were never initialised", unit.name_));
  if (unit.state_ == Unit::State::Forward) throw LogicError(fmt::format("unit {} runs within itself", unit.name_));
  if (in_backward_) {  // recomputation: the unit's own backward follows at once, so nothing is prefetched or released
    for (auto& group : unit.groups_) group->finish_gather();
  } else {
    if (forward_depth_++ == 0) forward_order_.begin();
    forward_order_.enter(&unit);
    gather(unit, forward_order_);
    unit.state_ = Unit::State::Forward;
  }
  bool tracked = c10::GradMode::is_enabled() && input.requires_grad();
  return tracked ? after_backward_identity(input, *this, unit) : input;
}

at::Tensor ShardingContext::after_forward(Unit& unit, const at::Tensor& output) {
  bool tracked = c10::GradMode::is_enabled() && output.requires_grad();
  if (!in_backward_) {
    if (!(unit.keep_gathered_ && tracked)) release(unit);
    unit.state_ = Unit::State::Resting;
    if (--forward_depth_ == 0) {
      forward_order_.end();
      release_unused();
    }
  }
  return tracked ? before_backward_identity(output, *this, unit) : output;
}

// -- backward ---------------------------------------------------------------------------------------------------------

void ShardingContext::begin_backward() {
  in_backward_ = true;
  backward_order_.begin();
  for (auto& unit : units_) unit->reduced_in_this_backward_ = false;
  // Runs when the outermost graph is done: whatever has no gradient flowing into its input is finished there.
  torch::autograd::Engine::get_default_engine().queue_callback([this] { end_backward(); });
}

void ShardingContext::before_backward(Unit& unit) {
  if (!in_backward_) begin_backward();
  if (unit.state_ == Unit::State::Forward) {
    throw LogicError(fmt::format("backward of unit {} began within its forward", unit.name_));
  }
  if (std::ranges::find(reducing_, &unit) != reducing_.end()) retire_reductions(0);
  backward_order_.enter(&unit);
  gather(unit, backward_order_);
  for (auto& group : unit.groups_) group->open_sinks();
  unit.state_ = Unit::State::Backward;
}

void ShardingContext::after_backward(Unit& unit) {
  if (unit.state_ != Unit::State::Backward) {
    throw LogicError(fmt::format("backward of unit {} ended without having begun", unit.name_));
  }
  reduce(unit);
}

void ShardingContext::reduce(Unit& unit) {
  for (auto& group : unit.groups_) group->collect_gradients();
  release(unit);
  unit.state_ = Unit::State::Resting;
  unit.reduced_in_this_backward_ = true;
  retire_reductions(kReductionsInFlight - 1);
  for (auto& group : unit.groups_) group->start_reduce();
  reducing_.push_back(&unit);
}

void ShardingContext::retire_reductions(std::size_t leave) {
  while (reducing_.size() > leave) {
    for (auto& group : reducing_.front()->groups_) group->finish_reduce();
    reducing_.pop_front();
  }
}

void ShardingContext::end_backward() {
  // Units in the fixed order of units_, so that ranks whose graphs differ still meet in the same collectives.
  for (auto& unit : units_) {
    if (!unit->reduced_in_this_backward_ || unit->state_ == Unit::State::Backward) reduce(*unit);
  }
  retire_reductions(0);
  backward_order_.end();
  in_backward_ = false;
  release_unused();
  if (!last_microbatch_) return;
  for (auto& unit : units_) {
    for (auto& group : unit->groups_) group->finalize();
  }
}

// -- what a training loop asks ----------------------------------------------------------------------------------------

std::vector<FlatShard> ShardingContext::flat_shards() const {
  std::vector<FlatShard> shards;
  for (auto& unit : units_) {
    for (auto& group : unit->groups_) {
      if (!group->plan().requires_grad) continue;
      if (group->has_pending()) {
        throw LogicError(
            fmt::format("unit {} has pending gradients: run the step's last backward outside no_sync()", unit->name_));
      }
      if (!group->final_grad().defined()) {
        throw LogicError(
            fmt::format("unit {} has no gradients: run a backward before the optimizer step", unit->name_));
      }
      shards.push_back(group->flat_shard());
    }
  }
  return shards;
}

std::vector<FlatShard> ShardingContext::weight_shards() const {
  std::vector<FlatShard> shards;
  for (auto& unit : units_) {
    for (auto& group : unit->groups_) {
      if (group->plan().requires_grad) shards.push_back(group->flat_shard());
    }
  }
  return shards;
}

void ShardingContext::refresh_weights() {
  for (auto& unit : units_) {
    for (auto& group : unit->groups_) group->refresh();
    unit->initialised_ = true;
  }
}

void ShardingContext::zero_grad() {
  for (auto& unit : units_) {
    for (auto& group : unit->groups_) group->zero_grad();
  }
}

void ShardingContext::for_each_owned(const std::function<void(const OwnedRange&)>& visit) const {
  for (auto& unit : units_) {
    for (auto& group : unit->groups_) group->for_each_owned(visit);
  }
}

}  // namespace meshard
