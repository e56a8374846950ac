#include "sharding/unit_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace meshard {

ModuleNames::ModuleNames(Module& root) : parameters_(named_parameters(root)) {
  walk(root, [&](const std::string& fqn, Module& module) { modules_[&module] = fqn; });
  for (auto& [fqn, parameter] : parameters_) slots_[parameter.id()].push_back(fqn);
}

const std::string& ModuleNames::of(const Module& module) const {
  auto found = modules_.find(&module);
  if (found == modules_.end()) throw LogicError("this module is not below the root of the sharding runtime");
  return found->second;
}

const std::vector<std::string>& ModuleNames::of(const Parameter& parameter) const {
  return slots_.at(parameter.id());
}

namespace {

void collect(Module& module, const std::set<const Module*>& unit_modules, std::vector<Parameter>& found) {
  for (auto& [name, parameter] : module.parameters()) {
    bool seen = std::ranges::any_of(found, [&](const Parameter& other) { return other.id() == parameter.id(); });
    if (!seen) found.push_back(parameter);
  }
  for (auto& child : module.children()) {
    if (!unit_modules.contains(child.module)) collect(*child.module, unit_modules, found);
  }
}

GroupPlan& group_for(std::vector<GroupPlan>& groups, const Slot& slot) {
  for (auto& group : groups) {
    if (group.dtype == slot.dtype && group.requires_grad == slot.requires_grad) return group;
  }
  groups.push_back({slot.dtype, slot.requires_grad, {}, {}});
  return groups.back();
}

}  // namespace

std::string unit_name(std::span<Module* const> modules, const ModuleNames& names) {
  std::string name;
  for (auto* module : modules) name += (name.empty() ? "" : "+") + names.of(*module);
  return name.empty() ? "root" : name;
}

std::vector<GroupPlan> plan_groups(std::span<Module* const> modules, const ModuleNames& names,
                                   const std::set<const Module*>& unit_modules, const std::set<const Slot*>& owned,
                                   int num_shards) {
  std::vector<Parameter> found;
  for (auto* module : modules) collect(*module, unit_modules, found);

  std::vector<GroupPlan> groups;
  for (auto& parameter : found) {
    auto& fqns = names.of(parameter);
    if (owned.contains(parameter.id())) {
      throw LogicError(fmt::format("{} is tied to a parameter of another unit ({}): tied weights must lie in one unit",
                                   fqns.back(), fqns.front()));
    }
    group_for(groups, parameter.slot()).parameters.push_back({parameter, fqns});
  }
  for (auto& group : groups) {
    std::vector<Shape> shapes;
    for (auto& entry : group.parameters) shapes.push_back(entry.parameter.slot().shape);
    group.layout = GlobalLayout::build(shapes, num_shards);
  }
  return groups;
}

}  // namespace meshard
