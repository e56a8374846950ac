// A model of one's own on Meshard's modules, trained for one step of plain gradient descent.

#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cstdio>

#include "base/error.h"
#include "module/module.h"

namespace {

class Scale : public meshard::Module {
 public:
  explicit Scale(const at::TensorOptions& options)
      : weight_(add_parameter("weight", {2, 2}, options, meshard::Init::constant(0), true)) {}

 private:
  at::Tensor forward(const at::Tensor& input) override { return at::matmul(input, weight_); }

  meshard::Parameter weight_;
};

}  // namespace

int main() {
  Scale model(at::TensorOptions().dtype(at::kFloat));
  auto& weight = model.parameters().front().parameter.slot().tensor;
  weight = at::zeros({2, 2}).set_requires_grad(true);

  model(at::ones({1, 2})).sum().backward();

  for (const auto& [name, parameter] : meshard::named_parameters(model)) {
    std::printf("%s: gradient sum %g\n", name.c_str(), parameter.tensor().grad().sum().item<double>());
  }
  const bool right = weight.grad().sum().item<double>() == 4.0;
  return right ? meshard::kExitDone : meshard::kExitFailure;
}
