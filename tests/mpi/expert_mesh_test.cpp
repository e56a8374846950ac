#include <ATen/ops/allclose.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <boost/test/unit_test.hpp>

#include "sharding/gradient_norm.h"
#include "sharding/runtime.h"
#include "support/sharded_pair.h"
#include "support/toy_modules.h"

using namespace meshard;

namespace {

constexpr std::int64_t kExperts = 8, kWidth = 3;

// Equal slices to and from every rank of an axis, and back in backward.
struct Exchange : torch::autograd::Function<Exchange> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, std::int64_t axis) {
    ctx->saved_data["axis"] = axis;
    return swap(x, axis);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    return {swap(grads[0], ctx->saved_data["axis"].toInt()), at::Tensor()};
  }
  static at::Tensor swap(const at::Tensor& x, std::int64_t axis) {
    auto in = x.contiguous();
    auto out = at::empty_like(in);
    reinterpret_cast<Communicator*>(axis)->all_to_all(out, in).wait();
    return out;
  }
};

// y_e = w_e * x_e, one row of x for each of the 8 experts; this rank holds the weights of 8 / ep of them.
class Experts : public Module {
 public:
  Experts(Communicator& axis, const at::TensorOptions& options) : axis_(axis) {
    weight = add_parameter("weight", {kExperts / axis.size(), kWidth}, options, Init::normal(0.02), true);
  }
  Parameter weight;

 protected:
  at::Tensor forward(const at::Tensor& x) override {
    auto axis = reinterpret_cast<std::int64_t>(&axis_);
    auto local = kExperts / axis_.size();
    auto rows = Exchange::apply(x, axis).view({axis_.size(), local, kWidth});  // by sender, then by local expert
    return Exchange::apply((rows * weight.tensor()).view({kExperts, kWidth}), axis);
  }

 private:
  Communicator& axis_;
};

class Mixture : public Module {
 public:
  Mixture(Communicator& axis, const at::TensorOptions& options)
      : dense(kWidth, kWidth, false, options), experts(axis, options) {
    add_child("dense", dense);
    add_child("experts", experts);
  }
  toys::Linear dense;
  Experts experts;

 protected:
  at::Tensor forward(const at::Tensor& x) override { return experts(dense(x)); }
};

at::Tensor tokens(int rank) {
  return test_values({kExperts, kWidth}, 10.0 + rank);
}
at::Tensor all_expert_weights() {
  return test_values({kExperts, kWidth}, 50.0);
}

struct Case {
  int outer, inner, ep;
};
// The cases of sharding/DESIGN.md section 12 that fit this many ranks.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (auto& c : {Case{1, 1, 1}, {2, 1, 2}, {2, 2, 1}, {1, 4, 2}, {2, 2, 2}, {1, 4, 4}, {2, 2, 4}, {2, 4, 4}}) {
    if (c.outer * c.inner == test_world().size()) all.push_back(c);
  }
  return all;
}

}  // namespace

// Catches: expert gradients that are ep times too large or averaged over the wrong ranks, dense ones disturbed by the
// expert mesh, a norm that misses or repeats experts.
BOOST_AUTO_TEST_CASE(gradients_equal_one_rank_for_every_expert_mesh) {
  auto& world = test_world();
  for (auto [outer, inner, ep] : cases()) {
    Mesh mesh(world, {world.size(), outer, inner, ep});
    for (auto strategy : kStrategies) {
      BOOST_TEST_CONTEXT("outer " << outer << " inner " << inner << " ep " << ep << " " << to_string(strategy)) {
        auto local = kExperts / ep;
        auto first = mesh.coordinate(Axis::Expert) * local;
        Mixture model(mesh.axis(Axis::Expert), at::TensorOptions(at::kFloat));
        model.dense.weight.tensor().detach().copy_(test_values({kWidth, kWidth}, 1.0));
        model.experts.weight.tensor().detach().copy_(all_expert_weights().narrow(0, first, local));
        ShardingRuntime runtime(model, mesh);
        runtime.fully_shard(model.experts,
                            {.strategy = strategy, .mesh = UnitMesh::Expert, .grad_divisor = double(ep)});
        runtime.fully_shard(model, {.strategy = strategy});

        // By hand, the mean over ranks of d sum((w_e . (D x_e))^2): through plain autograd on one rank.
        auto dense = test_values({kWidth, kWidth}, 1.0).set_requires_grad(true);
        auto experts = all_expert_weights().set_requires_grad(true);
        at::Tensor loss = at::zeros({});
        for (int rank = 0; rank < world.size(); ++rank) {
          loss = loss + (at::linear(tokens(rank), dense) * experts).square().sum() / world.size();
        }
        loss.backward();

        model(tokens(world.rank())).square().sum().backward();
        auto gradients = full_gradients(runtime);
        BOOST_TEST(at::allclose(gradients.at("dense.weight"), dense.grad(), 1e-5, 1e-5));
        BOOST_TEST(at::allclose(gradients.at("experts.weight"), experts.grad().narrow(0, first, local), 1e-5, 1e-5));
        auto norm = std::sqrt((dense.grad().square().sum() + experts.grad().square().sum()).item<double>());
        BOOST_TEST(gradient_norm(runtime).value == norm, boost::test_tools::tolerance(1e-5));
      }
    }
  }
}
