#pragma once
// How often a part of a model really runs: what tells recomputation from a flag that nobody reads.

#include <memory>

#include "module/module.h"

namespace meshard {

class ForwardCount : public ModuleHooks {
 public:
  explicit ForwardCount(std::shared_ptr<int> count) : count_(std::move(count)) {}
  at::Tensor pre_forward(const at::Tensor& input) override { return ++*count_, input; }
  at::Tensor post_forward(const at::Tensor& output) override { return output; }

 private:
  std::shared_ptr<int> count_;
};

/// Local. Counts from now on the forwards of every child called `name` of `modules`, which may have no hooks yet.
inline std::shared_ptr<int> count_forwards(const std::vector<Module*>& modules, const std::string& name) {
  auto count = std::make_shared<int>(0);
  for (auto* module : modules) {
    for (auto& child : module->children()) {
      if (child.name == name) child.module->set_hooks(std::make_unique<ForwardCount>(count));
    }
  }
  return count;
}

}  // namespace meshard
