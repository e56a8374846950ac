#pragma once
// Small modules whose gradients are easy to check, for tests of the sharding runtime.

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>

#include <memory>
#include <string>
#include <vector>

#include "module/module.h"

namespace meshard::toys {

/// y = x W^T (+ b).
class Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, bool bias, const at::TensorOptions& options) {
    weight = add_parameter("weight", {out, in}, options, Init::normal(0.5), true);
    if (bias) this->bias = add_parameter("bias", {out}, options, Init::constant(0.0), false);
  }
  Parameter weight, bias;

 protected:
  at::Tensor forward(const at::Tensor& x) override {
    return bias ? at::linear(x, weight.tensor(), bias.tensor()) : at::linear(x, weight.tensor());
  }
};

/// Layers in a row with ReLU between them, run in the order `order` (which a test may change).
class Stack : public Module {
 public:
  Stack(const std::vector<std::int64_t>& widths, bool bias, const at::TensorOptions& options) {
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      layers.push_back(std::make_unique<Linear>(widths[i], widths[i + 1], bias, options));
      add_child("layers." + std::to_string(i), *layers.back());
      order.push_back(static_cast<int>(i));
    }
  }
  std::vector<std::unique_ptr<Linear>> layers;
  std::vector<int> order;

 protected:
  at::Tensor forward(const at::Tensor& input) override {
    auto x = input;
    for (std::size_t i = 0; i < order.size(); ++i) {
      x = (*layers[order[i]])(x);
      if (i + 1 < order.size()) x = at::relu(x);
    }
    return x;
  }
};

/// One child that owns the weight, and a bias of its own: y = child(x) + bias.
class Nested : public Module {
 public:
  Nested(std::int64_t width, const at::TensorOptions& options) : inner(width, width, false, options) {
    add_child("inner", inner);
    bias = add_parameter("bias", {width}, options, Init::constant(0.0), false);
  }
  Linear inner;
  Parameter bias;

 protected:
  at::Tensor forward(const at::Tensor& x) override { return inner(x) + bias.tensor(); }
};

/// One matrix used twice, under two names: y = x E, then y E^T.
class Tied : public Module {
 public:
  Tied(std::int64_t rows, std::int64_t width, const at::TensorOptions& options) {
    embed = add_parameter("embed.weight", {rows, width}, options, Init::normal(0.5), false);
    add_parameter("head.weight", embed);
  }
  Parameter embed;

 protected:
  at::Tensor forward(const at::Tensor& x) override { return x.mm(embed.tensor()).mm(embed.tensor().t()); }
};

}  // namespace meshard::toys
