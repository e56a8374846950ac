#include "sharding/runtime.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>

#include "base/error.h"
#include "sharding/hooks.h"

namespace meshard {

namespace {
// Units whose gradients may be on the way while the next unit fills its own: two buffers in all, as `plan` counts them.
constexpr std::size_t kReductionsInFlight = 1;
// Units whose gradients are copied for the rest of their reduction.
constexpr std::size_t kCopiesInFlight = 2;

thread_local bool a_scope_is_open = false;
}  // namespace

ShardingRuntime::ShardingRuntime(Module& root, Mesh& mesh, int prefetch)
    : root_(root), mesh_(mesh), prefetch_(prefetch), names_(root), pool_(mesh.world().device()) {
  if (a_scope_is_open)
    throw LogicError("a sharding scope is open already: shard one model's root before the next model");
  a_scope_is_open = true;
}

ShardingRuntime::~ShardingRuntime() {
  close_scope();
  for (auto& unit : units_) {
    for (auto* module : unit->modules()) module->set_hooks(nullptr);
  }
}

void ShardingRuntime::close_scope() {
  if (scope_open_) a_scope_is_open = false;
  scope_open_ = false;
}

CommAxes ShardingRuntime::communicators(const GroupPlacement& placement) const {
  CommAxes axes;
  for (auto axis : placement.axes) axes.push_back(&mesh_.axis(axis));
  return axes;
}

Unit& ShardingRuntime::fully_shard(const std::vector<Module*>& modules, const ShardOptions& options) {
  if (!scope_open_) throw LogicError("the root is sharded: this scope is closed");
  if (modules.empty()) throw ArgumentError("a unit of no modules");
  for (auto* module : modules) {
    if (module->has_hooks()) throw LogicError(fmt::format("module '{}' is sharded already", names_.of(*module)));
  }
  bool is_root = std::ranges::find(modules, &root_) != modules.end();
  auto placement = place_unit(options.mesh, options.strategy, mesh_.shape());
  auto axes = communicators(placement);
  auto device = mesh_.world().device();
  auto name = unit_name(modules, names_);

  Unit::Groups groups;
  for (auto& plan : plan_groups(modules, names_, unit_modules_, owned_, placement.num_shards)) {
    groups.push_back(std::make_unique<ParamGroup>(plan, name, placement, axes, options.precision, options.grad_divisor,
                                                  device, pool_));
  }
  // Nothing throws from here on: a failed call leaves the modules as they were.
  for (auto& group : groups) {
    group->install();
    for (auto& entry : group->plan().parameters) owned_.insert(entry.parameter.id());
  }
  auto keep = options.keep.value_or(is_root ? Unit::Keep::Gathered : Unit::Keep::Nothing);
  auto unit = std::make_unique<Unit>(name, modules, keep, std::move(groups));
  for (auto* module : modules) {
    materialise_buffers(*module, unit_modules_, device);
    unit_modules_.insert(module);
    module->set_hooks(std::make_unique<UnitHooks>(*this, *unit, module == modules.front(), module == modules.back()));
  }
  units_.push_back(std::move(unit));
  if (is_root) close_scope();
  return *units_.back();
}

// -- order ------------------------------------------------------------------------------------------------------------

void ShardingRuntime::Order::begin() {
  position = 0;
}

void ShardingRuntime::Order::enter(Unit* unit) {
  bool as_recorded = position < units.size() && units[position] == unit;
  if (!as_recorded) {
    units.resize(position);
    units.push_back(unit);
    complete = false;
  }
  ++position;
}

void ShardingRuntime::Order::end() {
  units.resize(position);
  complete = true;
}

Unit* ShardingRuntime::Order::ahead(int distance) const {
  auto index = position + distance - 1;
  return complete && index < units.size() ? units[index] : nullptr;
}

// -- gather and release -----------------------------------------------------------------------------------------------

void ShardingRuntime::gather(Unit& unit, const Order& order, Pass pass) {
  auto reads = [pass](const Unit& each) { return pass == Pass::Forward || each.backward_reads_parameters(); };
  if (reads(unit)) unit.start_gather();
  for (int distance = 1; distance <= prefetch_; ++distance) {
    auto* next = order.ahead(distance);
    if (next && reads(*next)) next->start_gather();
  }
  if (reads(unit)) unit.finish_gather();
}

// A prefetched unit that was not used after all must not keep its storage, nor stale weights.
void ShardingRuntime::release_unused() {
  for (auto& unit : units_) {
    if (unit->is_resting() && !unit->keeps_gathered()) unit->release();
  }
}

// -- forward ----------------------------------------------------------------------------------------------------------

at::Tensor ShardingRuntime::before_forward(Unit& unit, const at::Tensor& input) {
  if (scope_open_) throw LogicError("forward before the root was sharded: call fully_shard on the root last");
  unit.check_can_run();
  if (in_backward_) {  // recomputation: the unit's own backward follows at once, so nothing is prefetched or released
    unit.finish_gather();
  } else {
    if (forward_depth_++ == 0) forward_order_.begin();
    forward_order_.enter(&unit);
    gather(unit, forward_order_, Pass::Forward);
    unit.begin_forward();
  }
  bool tracked = c10::GradMode::is_enabled() && input.requires_grad();
  return tracked ? after_backward_identity(input, *this, unit) : input;
}

at::Tensor ShardingRuntime::after_forward(Unit& unit, const at::Tensor& output) {
  bool tracked = c10::GradMode::is_enabled() && output.requires_grad();
  if (!in_backward_) {
    if (!(unit.keeps_gathered() && tracked)) unit.release();
    unit.end_forward();
    if (--forward_depth_ == 0) {
      forward_order_.end();
      release_unused();
    }
  }
  return tracked ? before_backward_identity(output, *this, unit) : output;
}

// -- backward ---------------------------------------------------------------------------------------------------------

void ShardingRuntime::begin_backward() {
  in_backward_ = true;
  backward_order_.begin();
  reduced_.clear();
  // Runs when the outermost graph is done: whatever has no gradient flowing into its input is finished there.
  torch::autograd::Engine::get_default_engine().queue_callback([this] { end_backward(); });
}

void ShardingRuntime::before_backward(Unit& unit) {
  if (!in_backward_) begin_backward();
  finish_reductions_of(unit);
  backward_order_.enter(&unit);
  gather(unit, backward_order_, Pass::Backward);
  unit.begin_backward();
}

void ShardingRuntime::after_backward(Unit& unit) {
  unit.check_in_backward();
  reduce(unit);
}

void ShardingRuntime::reduce(Unit& unit) {
  unit.end_backward();
  reduced_.insert(&unit);
  for (auto* each : finalizing_) each->continue_finalize();
  retire_reductions(kReductionsInFlight - 1);
  unit.start_reduce();
  reducing_.push_back(&unit);
  while (!reducing_.empty() && !reducing_.front()->is_reducing()) retire_reductions(reducing_.size() - 1);
}

// What is reduced within the mesh goes on its way over the other axes at once, in the step's last microbatch.
void ShardingRuntime::retire_reductions(std::size_t leave) {
  while (reducing_.size() > leave) {
    auto* unit = reducing_.front();
    reducing_.pop_front();
    unit->finish_reduce();
    if (!last_microbatch_) continue;
    if (unit->copies_to_finalize()) finish_finalizations(kCopiesInFlight - 1);
    unit->start_finalize();
    finalizing_.push_back(unit);
  }
}

void ShardingRuntime::finish_finalizations(std::size_t leave) {
  while (finalizing_.size() > leave) {
    finalizing_.front()->finish_finalize();
    finalizing_.pop_front();
  }
}

// A unit that runs once more in one backward: what it gave so far must not be added to while it is on the way.
void ShardingRuntime::finish_reductions_of(const Unit& unit) {
  if (std::ranges::find(reducing_, &unit) != reducing_.end()) retire_reductions(0);
  if (std::ranges::find(finalizing_, &unit) != finalizing_.end()) finish_finalizations(0);
}

void ShardingRuntime::end_backward() {
  // Units in the fixed order of units_, so that ranks whose graphs differ still meet in the same collectives.
  for (auto& unit : units_) {
    if (!reduced_.contains(unit.get()) || unit->is_in_backward()) reduce(*unit);
  }
  retire_reductions(0);
  backward_order_.end();
  in_backward_ = false;
  release_unused();
  finish_finalizations(0);
}

// -- what a training loop asks ----------------------------------------------------------------------------------------

std::vector<FlatShard> ShardingRuntime::flat_shards() const {
  std::vector<FlatShard> shards;
  for (auto& unit : units_) {
    for (auto& group : unit->groups()) {
      if (!group->plan().requires_grad) continue;
      if (group->has_pending()) {
        throw LogicError(
            fmt::format("unit {} has pending gradients: run the step's last backward outside no_sync()", unit->name()));
      }
      if (!group->final_grad().defined()) {
        throw LogicError(
            fmt::format("unit {} has no gradients: run a backward before the optimizer step", unit->name()));
      }
      shards.push_back(group->flat_shard());
    }
  }
  return shards;
}

std::vector<FlatShard> ShardingRuntime::weight_shards() const {
  std::vector<FlatShard> shards;
  for (auto& unit : units_) {
    for (auto& group : unit->groups()) {
      if (group->plan().requires_grad) shards.push_back(group->flat_shard());
    }
  }
  return shards;
}

// What the next forward needs first comes first.
void ShardingRuntime::refresh_weights() {
  std::set<const Unit*> refreshed;
  auto refresh = [&](Unit& unit) {
    if (refreshed.insert(&unit).second) unit.refresh();
  };
  for (auto* unit : forward_order_.units) refresh(*unit);
  for (auto& unit : units_) refresh(*unit);
}

void ShardingRuntime::zero_grad() {
  for (auto& unit : units_) unit->zero_grad();
}

void ShardingRuntime::for_each_owned(const std::function<void(const OwnedRange&)>& visit) const {
  for (auto& unit : units_) {
    for (auto& group : unit->groups()) group->for_each_owned(visit);
  }
}

}  // namespace meshard
