#include "module/module.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace meshard {

const at::Tensor& Parameter::tensor() const {
  if (!slot_->tensor.defined()) {
    throw LogicError(
        fmt::format("a parameter of shape {} was used while its unit is not gathered: run the module through "
                    "its call operator, not its parts",
                    slot_->shape));
  }
  return slot_->tensor;
}

at::Tensor Module::operator()(const at::Tensor& input) {
  return invoke(input, [this](const at::Tensor& x) { return forward(x); });
}

at::Tensor Module::invoke(const at::Tensor& input, const std::function<at::Tensor(const at::Tensor&)>& body) {
  if (!hooks_) return body(input);
  return hooks_->post_forward(body(hooks_->pre_forward(input)));
}

Parameter Module::add_parameter(std::string name, Shape shape, const at::TensorOptions& options, Init init,
                                bool decay) {
  TensorPart all(shape);
  return add_parameter(std::move(name), std::move(shape), std::move(all), options, init, decay);
}

Parameter Module::add_parameter(std::string name, Shape shape, TensorPart part, const at::TensorOptions& options,
                                Init init, bool decay) {
  if (part.numel() != numel_of(shape)) {
    throw LogicError(fmt::format("parameter {} of shape {} is said to be {} of a tensor of shape {}", name, shape,
                                 to_string(part.box()), part.whole_shape()));
  }
  auto slot = std::make_shared<Slot>();
  slot->tensor = at::empty(shape, options.requires_grad(std::nullopt));
  slot->dtype = slot->tensor.scalar_type();
  slot->shape = std::move(shape);
  slot->part = std::move(part);
  slot->init = init;
  slot->decay = decay;
  slot->tensor.set_requires_grad(true);
  parameters_.push_back({std::move(name), Parameter(slot)});
  return parameters_.back().parameter;
}

void Module::add_parameter(std::string name, Parameter tied) {
  parameters_.push_back({std::move(name), std::move(tied)});
}

at::Tensor Module::add_buffer(std::string name, std::function<at::Tensor()> declared, at::Device device,
                              bool persistent) {
  auto value = declared();
  auto tensor = device.is_meta() ? at::empty_like(value, value.options().device(device)) : value.to(device);
  buffers_.push_back({std::move(name), tensor, std::move(declared), persistent});
  return tensor;
}

void Module::add_child(std::string name, Module& child) {
  children_.push_back({std::move(name), &child});
}

std::string join_name(std::string_view prefix, std::string_view name) {
  return prefix.empty() ? std::string(name) : fmt::format("{}.{}", prefix, name);
}

namespace {
void walk_from(const std::string& fqn, Module& module, const std::function<void(const std::string&, Module&)>& visit) {
  visit(fqn, module);
  for (auto& child : module.children()) walk_from(join_name(fqn, child.name), *child.module, visit);
}
}  // namespace

void walk(Module& root, const std::function<void(const std::string&, Module&)>& visit) {
  walk_from("", root, visit);
}

std::vector<NamedParameter> named_parameters(Module& root) {
  std::vector<NamedParameter> all;
  walk(root, [&](const std::string& fqn, Module& module) {
    for (auto& [name, parameter] : module.parameters()) all.push_back({join_name(fqn, name), parameter});
  });
  return all;
}

bool accumulate_into_sink(Slot& slot, at::ScalarType dtype,
                          const std::function<void(at::Tensor& target, int beta)>& write) {
  if (!slot.sink.grad.defined() || slot.sink.grad.scalar_type() != dtype) return false;
  write(slot.sink.grad, slot.sink.filled ? 1 : 0);
  slot.sink.filled = true;
  return true;
}

}  // namespace meshard
