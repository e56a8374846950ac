#include "sharding/hooks.h"

#include <torch/csrc/autograd/custom_function.h>

namespace meshard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

std::int64_t address(void* pointer) {
  return reinterpret_cast<std::int64_t>(pointer);
}

template <class T>
T& object(AutogradContext* ctx, const char* key) {
  return *reinterpret_cast<T*>(ctx->saved_data[key].toInt());
}

template <void (ShardingRuntime::*Event)(Unit&)>
struct Identity : Function<Identity<Event>> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, std::int64_t runtime, std::int64_t unit) {
    ctx->saved_data["runtime"] = runtime;
    ctx->saved_data["unit"] = unit;
    ctx->set_materialize_grads(false);
    return tensor.view_as(tensor);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    (object<ShardingRuntime>(ctx, "runtime").*Event)(object<Unit>(ctx, "unit"));
    return {grads[0], at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor before_backward_identity(const at::Tensor& output, ShardingRuntime& runtime, Unit& unit) {
  return Identity<&ShardingRuntime::before_backward>::apply(output, address(&runtime), address(&unit));
}

at::Tensor after_backward_identity(const at::Tensor& input, ShardingRuntime& runtime, Unit& unit) {
  return Identity<&ShardingRuntime::after_backward>::apply(input, address(&runtime), address(&unit));
}

void materialise_buffers(Module& module, const std::set<const Module*>& unit_modules, at::Device device) {
  for (auto& buffer : module.buffers()) {
    if (!buffer.tensor.is_meta()) continue;
    // In place, so that every handle to the buffer sees it.
    buffer.tensor.unsafeGetTensorImpl()->shallow_copy_from(buffer.declared().to(device).getIntrusivePtr());
  }
  for (auto& child : module.children()) {
    if (!unit_modules.contains(child.module)) materialise_buffers(*child.module, unit_modules, device);
  }
}

}  // namespace meshard
