#pragma once
// Which parameters a unit owns and how they form groups. Pure: needs a module tree (on meta will do), no ranks; `plan`
// and fully_shard() share it. DESIGN.md section 5.

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "module/module.h"
#include "sharding/flat_layout.h"

namespace meshard {

/// One physical parameter; tied weights have several names.
struct GroupParameter {
  Parameter parameter;
  std::vector<std::string> fqns;  ///< the first one names it in files, seeds and messages
  const std::string& fqn() const { return fqns.front(); }
};

/// Parameters of a unit that share dtype and requires_grad, laid out in one flat buffer.
struct GroupPlan {
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = true;
  std::vector<GroupParameter> parameters;
  GlobalLayout layout;
};

/// The names below a root: FQNs of modules and of parameters.
class ModuleNames {
 public:
  /// Local. Walks the tree once.
  explicit ModuleNames(Module& root);
  /// Local. LogicError if the module is not below the root. The root's name is "".
  const std::string& of(const Module& module) const;
  const std::vector<std::string>& of(const Parameter& parameter) const;
  const std::vector<NamedParameter>& parameters() const { return parameters_; }

 private:
  std::map<const Module*, std::string> modules_;
  std::map<const Slot*, std::vector<std::string>> slots_;
  std::vector<NamedParameter> parameters_;
};

/// Local. The name of the unit of these modules: their FQNs, "model.norm+lm_head"; "root" for the root.
std::string unit_name(std::span<Module* const> modules, const ModuleNames& names);

/// Local. The groups of the unit of `modules`: every parameter below them that lies in no nested unit (`unit_modules`),
/// in walk order, one group per (dtype, requires_grad) in first-seen order. LogicError if one is tied to a parameter
/// that another unit owns (`owned`): tied weights must lie in one unit.
std::vector<GroupPlan> plan_groups(std::span<Module* const> modules, const ModuleNames& names,
                                   const std::set<const Module*>& unit_modules, const std::set<const Slot*>& owned,
                                   int num_shards);

}  // namespace meshard
