#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "optim/optimizer.h"
#include "sharding/gradient_norm.h"
#include "sharding/runtime.h"
#include "support/sharded_pair.h"
#include "support/toy_modules.h"

using namespace meshard;

namespace {

constexpr double kRtol = 1.3e-6, kAtol = 1e-5;

void check_close(const std::map<std::string, at::Tensor>& actual, const std::map<std::string, at::Tensor>& expected,
                 double rtol = kRtol, double atol = kAtol) {
  BOOST_TEST(actual.size() == expected.size());
  for (auto& [name, tensor] : expected) {
    BOOST_TEST_CONTEXT(name) {
      BOOST_REQUIRE(actual.contains(name));
      BOOST_TEST(at::allclose(actual.at(name), tensor, rtol, atol));
    }
  }
}

at::Tensor loss_of(toys::Stack& model, const at::Tensor& x) {
  return model(x).square().sum();
}

// Rows of microbatch `a` of rank `r`: every rank's rows differ, and all ranks' together are the whole batch.
at::Tensor batch(int step, int microbatches) {
  int w = test_world().size();
  return test_values({microbatches * w * 2, 8}, 100 + step);
}
at::Tensor my_rows(const at::Tensor& whole, int a) {
  int w = test_world().size();
  return whole.narrow(0, (a * w + test_world().rank()) * 2, 2);
}

struct ShardedStack {
  ShardedStack(Mesh& mesh, Strategy strategy, std::vector<std::int64_t> widths, Precision precision = {})
      : model(widths, true, at::TensorOptions(at::kFloat)), runtime((fill_plain(model), model), mesh) {
    ShardOptions options{.strategy = strategy, .precision = precision};
    for (auto& layer : model.layers) runtime.fully_shard(*layer, options);
    runtime.fully_shard(model, options);
  }

  // One step's backward passes; the loss of the whole batch.
  double backward(const at::Tensor& whole, int microbatches, bool scoped = true) {
    double sum = 0.0;
    for (int a = 0; a < microbatches; ++a) {
      auto scope = runtime.no_sync(scoped && a + 1 < microbatches);
      auto loss = loss_of(model, my_rows(whole, a)) * test_world().size();
      loss.backward();
      sum += loss.item<double>();
    }
    auto total = at::full({1}, sum / test_world().size(), at::kDouble);
    test_world().control().all_reduce(total, ReduceOp::Sum).wait();
    return total.item<double>();
  }

  void sgd_step(double lr) {
    for (auto& shard : runtime.flat_shards()) shard.weight.sub_(shard.grad, lr);
    runtime.refresh_weights();
    runtime.zero_grad();
  }

  toys::Stack model;
  ShardingRuntime runtime;
};

struct PlainStack {
  explicit PlainStack(std::vector<std::int64_t> widths) : model(widths, true, at::TensorOptions(at::kFloat)) {
    fill_plain(model);
  }
  double backward(const at::Tensor& whole) {
    auto loss = loss_of(model, whole);
    loss.backward();
    return loss.item<double>();
  }
  std::map<std::string, at::Tensor> gradients() {
    std::map<std::string, at::Tensor> all;
    for (auto& [name, parameter] : named_parameters(model)) all[name] = parameter.tensor().grad();
    return all;
  }
  void sgd_step(double lr) {
    for (auto& [name, parameter] : named_parameters(model)) {
      parameter.tensor().detach().sub_(parameter.tensor().grad(), lr);
      parameter.tensor().mutable_grad() = at::Tensor();
    }
  }
  toys::Stack model;
};

// Layers in a row that call `watch` when they begin to compute, in forward and in backward.
class WatchedChain : public Module {
 public:
  WatchedChain(int count, std::function<void()> watch) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(std::make_unique<Layer>(watch));
      add_child("layers." + std::to_string(i), *layers.back());
    }
  }

  class Layer : public toys::Linear {
   public:
    explicit Layer(std::function<void()> watch) : Linear(4, 4, true, at::kFloat), watch_(std::move(watch)) {}

   protected:
    at::Tensor forward(const at::Tensor& x) override {
      watch_();
      auto y = Linear::forward(x);
      y.register_hook([watch = watch_](const at::Tensor&) { watch(); });
      return y;
    }

   private:
    std::function<void()> watch_;
  };
  std::vector<std::unique_ptr<Layer>> layers;

 protected:
  at::Tensor forward(const at::Tensor& x) override {
    auto y = x;
    for (auto& layer : layers) y = (*layer)(y);
    return y;
  }
};

template <class Check>
void on_every_mesh_and_strategy(const Check& check) {
  for (auto& shape : factorings(test_world().size())) {
    Mesh mesh(test_world(), shape);
    for (auto strategy : kStrategies) {
      BOOST_TEST_CONTEXT(to_string(strategy) << " on " << shape.dp_outer() << " x " << shape.dp_shard()) {
        check(mesh, strategy);
      }
    }
  }
}

Traffic traffic(const char* operation, const char* axis) {
  return test_world().ledger().at(operation, axis);
}

}  // namespace

// Catches: any wrong gradient, a lost microbatch, a stale weight in the next forward, under any strategy and mesh.
BOOST_AUTO_TEST_CASE(five_sgd_steps_equal_the_unsharded_run) {
  on_every_mesh_and_strategy([](Mesh& mesh, Strategy strategy) {
    for (int microbatches : {1, 3}) {
      PlainStack plain({8, 16, 4});
      ShardedStack sharded(mesh, strategy, {8, 16, 4});
      for (int step = 0; step < 5; ++step) {
        auto whole = batch(step, microbatches) * 0.1;
        auto expected = plain.backward(whole);
        BOOST_TEST(sharded.backward(whole, microbatches) == expected, boost::test_tools::tolerance(1e-5));
        check_close(full_gradients(sharded.runtime), plain.gradients());
        plain.sgd_step(0.05);
        sharded.sgd_step(0.05);
      }
    }
  });
}

// Catches: an un-scoped second backward that drops the first one's gradients.
BOOST_AUTO_TEST_CASE(two_unscoped_backwards_accumulate) {
  on_every_mesh_and_strategy([](Mesh& mesh, Strategy strategy) {
    PlainStack plain({8, 16, 4});
    ShardedStack sharded(mesh, strategy, {8, 16, 4});
    for (int step = 0; step < 2; ++step) {  // twice: buffers must not carry anything over
      plain.backward(batch(step, 3) * 0.1);
      sharded.backward(batch(step, 3) * 0.1, 3, /*scoped=*/false);
      check_close(full_gradients(sharded.runtime), plain.gradients());
      plain.sgd_step(0.05);
      sharded.sgd_step(0.05);
    }
  });
}

// Catches: a norm that counts replicas, misses a shard, or depends on the mesh.
BOOST_AUTO_TEST_CASE(the_gradient_norm_is_that_of_one_rank) {
  PlainStack plain({8, 16, 4});
  plain.backward(batch(0, 1));
  double squares = 0.0;
  for (auto& [name, grad] : plain.gradients()) squares += grad.to(at::kDouble).square().sum().item<double>();
  on_every_mesh_and_strategy([&](Mesh& mesh, Strategy strategy) {
    ShardedStack sharded(mesh, strategy, {8, 16, 4});
    sharded.backward(batch(0, 1), 1);
    auto norm = gradient_norm(sharded.runtime);
    BOOST_TEST(norm.value == std::sqrt(squares), boost::test_tools::tolerance(1e-6));
    BOOST_TEST(norm.finite());
    clip_gradients(sharded.runtime, norm, 1.0);
    BOOST_TEST(gradient_norm(sharded.runtime).value == 1.0, boost::test_tools::tolerance(1e-5));
  });
}

// Catches: a NaN on one rank that others do not hear of, or that nobody can name.
BOOST_AUTO_TEST_CASE(a_nonfinite_gradient_is_named_on_every_rank) {
  on_every_mesh_and_strategy([&](Mesh& mesh, Strategy strategy) {
    ShardedStack sharded(mesh, strategy, {8, 16, 4});
    auto whole = batch(0, 1);
    whole[whole.size(0) - 1].fill_(NAN);  // a row of the last rank
    sharded.backward(whole, 1);
    auto norm = gradient_norm(sharded.runtime);
    BOOST_TEST(!norm.finite());
    BOOST_REQUIRE(!norm.nonfinite.empty());
    BOOST_TEST(norm.nonfinite.front().starts_with("gradient of layers."));
  });
}

// Catches: outer reductions on every microbatch, or collectives missing or doubled.
BOOST_AUTO_TEST_CASE(collectives_of_a_hybrid_step_are_counted) {
  on_every_mesh_and_strategy([](Mesh& mesh, Strategy strategy) {
    if (strategy != Strategy::Hsdp && strategy != Strategy::Hfsdp) return;
    ShardedStack sharded(mesh, strategy, {8, 16, 16, 4});
    sharded.backward(batch(0, 3), 3);
    sharded.sgd_step(0.01);
    test_world().ledger().clear();
    sharded.backward(batch(1, 3), 3);
    sharded.sgd_step(0.01);
    bool hfsdp = strategy == Strategy::Hfsdp;
    int outer = mesh.shape().dp_outer() > 1 ? 1 : 0, inner = mesh.shape().dp_shard() > 1 ? 1 : 0;
    BOOST_TEST(traffic("all_reduce", "dp_outer").count == (hfsdp ? 0 : 3) * outer);
    BOOST_TEST(traffic("reduce_scatter", "dp_shard").count == 9 * inner);
    BOOST_TEST(traffic("reduce_scatter", "dp_outer").count == (hfsdp ? 3 : 0) * outer);
    BOOST_TEST(traffic("all_gather", "dp_shard").count == 18 * inner);
    BOOST_TEST(traffic("all_gather", "dp_outer").count == (hfsdp ? 3 : 0) * outer);
  });
}

// Catches: a unit gathered only when it is needed, so that nothing overlaps, or further ahead than was asked.
BOOST_AUTO_TEST_CASE(units_are_gathered_ahead_once_their_order_is_known) {
  using Counts = std::vector<std::int64_t>;
  auto& world = test_world();
  Mesh mesh(world, {world.size(), 1, world.size()});
  // Gathers issued when the three layers began to compute, forward and backward.
  const std::vector<Counts> by_depth = {{1, 2, 3, 4, 5, 6}, {2, 3, 3, 5, 6, 6}, {3, 3, 3, 6, 6, 6}};
  for (int depth = 0; depth < 3; ++depth) {
    Counts issued;
    WatchedChain model(3, [&] { issued.push_back(traffic("all_gather", "dp_shard").count); });
    fill_plain(model);
    ShardingRuntime runtime(model, mesh, depth);
    for (auto& layer : model.layers) runtime.fully_shard(*layer, {});
    runtime.fully_shard(model, {});
    for (int pass = 0; pass < 2; ++pass) {
      world.ledger().clear();
      issued.clear();
      model(test_values({2, 4}, 1.0).set_requires_grad(true)).sum().backward();
      BOOST_TEST(issued == by_depth[pass == 0 ? 0 : depth], boost::test_tools::per_element());
    }
  }
}

// Catches: a refresh that rounds the main weights to the model's dtype more than once.
BOOST_AUTO_TEST_CASE(a_refresh_casts_once) {
  on_every_mesh_and_strategy([](Mesh& mesh, Strategy strategy) {
    toys::Stack model({8, 16, 4}, true, at::kFloat);
    fill_plain(model);
    ShardingRuntime runtime(model, mesh);
    runtime.fully_shard(model, {.strategy = strategy, .precision = {.param = at::kBFloat16}});
    static int copies;
    copies = 0;
    auto count = [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
      if (std::string_view(call.name()) == "aten::copy_") ++copies;
      return nullptr;
    };
    auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(count));
    runtime.refresh_weights();
    at::removeCallback(handle);
    BOOST_TEST(copies == 1);
    runtime.units()[0]->groups()[0]->finish_gather();
  });
}

// Catches: an average taken twice, or a sum: gradients of ranks that differ, by hand.
BOOST_AUTO_TEST_CASE(two_backwards_average_over_ranks_and_add) {
  auto& world = test_world();
  Mesh mesh(world, {world.size(), 1, world.size()});
  toys::Linear model(1, 64 * world.size(), false, at::TensorOptions(at::kFloat));  // 64 elements a rank, no padding
  model.weight.tensor().detach().fill_(1.0);
  ShardingRuntime runtime(model, mesh);
  auto& unit = runtime.fully_shard(model, {.strategy = Strategy::Fsdp});
  for (int pass = 0; pass < 2; ++pass) {
    auto scope = runtime.no_sync();
    model(at::full({1, 1}, world.rank() + 1.0)).sum().backward();
  }
  auto& pending = unit.groups()[0]->pending_grad();
  BOOST_REQUIRE(pending.defined());
  BOOST_TEST((pending == world.size() + 1.0).all().item<bool>());
  BOOST_CHECK_THROW(runtime.flat_shards(), LogicError);
}

// Catches: main weights or moments rounded to bf16 between steps; gradients that reach the optimizer in another scale.
BOOST_AUTO_TEST_CASE(bf16_with_fp32_main_weights_follows_plain_bf16_adam) {
  constexpr double kLr = 0.01;
  auto mean_loss = [](toys::Stack& model, const at::Tensor& x) { return model(x).to(at::kFloat).square().mean(); };
  auto shrink = [](toys::Stack& model) {
    for (auto& [name, parameter] : named_parameters(model)) parameter.tensor().detach().mul_(0.3);
  };
  on_every_mesh_and_strategy([&](Mesh& mesh, Strategy strategy) {
    toys::Stack plain({8, 16, 4}, true, at::TensorOptions(at::kBFloat16)), model({8, 16, 4}, true, at::kFloat);
    for (auto* each : {&plain, &model}) {
      fill_plain(*each);
      shrink(*each);
    }
    ShardingRuntime runtime(model, mesh);
    runtime.fully_shard(model, {.strategy = strategy, .precision = {.param = at::kBFloat16}});
    AdamW adam({.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.0});
    std::map<std::string, std::pair<at::Tensor, at::Tensor>> moments;
    double before = INFINITY;
    for (int step = 1; step <= 3; ++step) {
      auto whole = (batch(0, 1) * 0.3).to(at::kBFloat16);
      auto expected = mean_loss(plain, whole);
      expected.backward();
      auto mine = mean_loss(model, my_rows(whole, 0));
      mine.backward();
      auto sum = at::full({1}, mine.item<double>(), at::kDouble);
      test_world().control().all_reduce(sum, ReduceOp::Average).wait();
      BOOST_TEST(std::abs(sum.item<double>() - expected.item<double>()) <= 3e-3);
      BOOST_TEST(expected.item<double>() < before - 5e-3);  // a step changes the loss by more than the tolerance
      before = expected.item<double>();

      for (auto& [name, parameter] : named_parameters(plain)) {
        auto grad = parameter.tensor().grad();
        auto& [m, v] = moments.try_emplace(name, at::zeros_like(grad), at::zeros_like(grad)).first->second;
        m.mul_(0.9).add_(grad, 0.1);
        v.mul_(0.95).addcmul_(grad, grad, 0.05);
        auto root = (v / (1 - std::pow(0.95, step))).sqrt().add_(1e-8);
        parameter.tensor().detach().addcdiv_(m, root, -kLr / (1 - std::pow(0.9, step)));
        parameter.tensor().mutable_grad() = at::Tensor();
      }
      adam.step(runtime.flat_shards(), kLr);
      runtime.refresh_weights();
      runtime.zero_grad();
    }
    for (auto& [name, weight] : full_weights(runtime)) {  // steps of 0.01 move fp32 main weights off the bf16 grid
      BOOST_TEST((weight.scalar_type() == at::kFloat));
      BOOST_TEST(!at::equal(weight, weight.to(at::kBFloat16).to(at::kFloat)));
    }
  });
}

// Catches: the same run giving other bits the second time: sums in the order in which ranks arrive, or anything that
// depends on what memory held before. In the second run every rank is late in its turn, and fresh memory holds NaN.
BOOST_AUTO_TEST_CASE(the_same_run_twice_is_bitwise_equal) {
  on_every_mesh_and_strategy([](Mesh& mesh, Strategy strategy) {
    std::map<std::string, at::Tensor> weights[2];
    double norms[2] = {};
    for (int run : {0, 1}) {
      at::globalContext().setDeterministicAlgorithms(run == 1, /*warn_only=*/true);  // fills what is uninitialised
      ShardedStack sharded(mesh, strategy, {8, 8, 8, 8});
      sharded.model.order = {0, 2};  // one layer gets no gradient
      for (int step = 0; step < 3; ++step) {
        int turn = (test_world().rank() + step) % test_world().size();
        if (run == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2 * turn));
        sharded.backward(batch(step, 2) * 0.1, 2);
        auto norm = gradient_norm(sharded.runtime);
        clip_gradients(sharded.runtime, norm, 0.5);
        norms[run] += norm.value;
        sharded.sgd_step(0.05);
      }
      weights[run] = full_weights(sharded.runtime);
    }
    at::globalContext().setDeterministicAlgorithms(false, false);
    check_close(weights[0], weights[1], 0.0, 0.0);
    BOOST_TEST(norms[0] == norms[1]);
  });
}

// Catches: prefetching by a stale order giving wrong or missing weights.
BOOST_AUTO_TEST_CASE(a_changed_order_of_units_is_followed) {
  on_every_mesh_and_strategy([](Mesh& mesh, Strategy strategy) {
    PlainStack plain({8, 8, 8, 8});
    ShardedStack sharded(mesh, strategy, {8, 8, 8, 8});
    for (auto order : {std::vector{0, 1, 2}, {0, 1, 2}, {2, 0, 1}, {1}, {0, 1, 2}}) {
      plain.model.order = sharded.model.order = order;
      plain.backward(batch(0, 1) * 0.1);
      sharded.backward(batch(0, 1) * 0.1, 1);
      auto expected = plain.gradients();
      auto sharded_gradients = full_gradients(sharded.runtime);
      for (auto& [name, grad] : expected) {  // a layer that did not run has zeros, and took part in every reduction
        if (!grad.defined()) grad = at::zeros_like(sharded_gradients.at(name));
      }
      check_close(sharded_gradients, expected);
      for (auto& [name, parameter] : named_parameters(plain.model)) parameter.tensor().mutable_grad() = at::Tensor();
      sharded.sgd_step(0.0);
    }
  });
}
