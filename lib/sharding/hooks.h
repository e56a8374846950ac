#pragma once
// The seam between autograd and the sharding runtime: identities in the graph whose backward tells the runtime that a
// unit's backward begins or has ended.

#include "sharding/runtime.h"

namespace meshard {

/// Calls the runtime around a unit's forward: before its first module and after its last one.
class UnitHooks : public ModuleHooks {
 public:
  UnitHooks(ShardingRuntime& runtime, Unit& unit, bool first, bool last)
      : runtime_(runtime), unit_(unit), first_(first), last_(last) {}
  at::Tensor pre_forward(const at::Tensor& input) override {
    return first_ ? runtime_.before_forward(unit_, input) : input;
  }
  at::Tensor post_forward(const at::Tensor& output) override {
    return last_ ? runtime_.after_forward(unit_, output) : output;
  }

 private:
  ShardingRuntime& runtime_;
  Unit& unit_;
  bool first_, last_;
};

/// Local. `output` itself; its backward first calls runtime.before_backward(unit).
at::Tensor before_backward_identity(const at::Tensor& output, ShardingRuntime& runtime, Unit& unit);

/// Local. `input` itself; its backward, which runs once all gradients of the unit's input have arrived, calls
/// runtime.after_backward(unit). It was made before every node of the unit's forward, so it runs after all of them.
at::Tensor after_backward_identity(const at::Tensor& input, ShardingRuntime& runtime, Unit& unit);

/// Local. Gives the meta buffers below `module` (outside nested units) their declared values. Real buffers keep storage
/// and value: re-allocating them is the Megatron-LM #4155 fault.
void materialise_buffers(Module& module, const std::set<const Module*>& unit_modules, at::Device device);

}  // namespace meshard
