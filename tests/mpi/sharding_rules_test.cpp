#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <boost/test/unit_test.hpp>

#include "base/error.h"
#include "sharding/audit.h"
#include "sharding/gradient_norm.h"
#include "sharding/model_hash.h"
#include "support/sharded_pair.h"
#include "support/toy_modules.h"

using namespace meshard;

namespace {

auto kReal = at::TensorOptions(at::kFloat);
auto kOnMeta = at::TensorOptions(at::kFloat).device(at::kMeta);

Mesh flat_mesh() {
  return Mesh(test_world(), {test_world().size(), 1, test_world().size()});
}

auto says(const std::string& text) {
  return [text](const std::exception& error) {
    if (std::string(error.what()).find(text) != std::string::npos) return true;
    BOOST_TEST_MESSAGE("the message was: " << error.what());
    return false;
  };
}

std::vector<std::string> fqns(const ParamGroup& group) {
  std::vector<std::string> names;
  for (auto& entry : group.plan().parameters) names.insert(names.end(), entry.fqns.begin(), entry.fqns.end());
  return names;
}

// Two matrices in one unit: y = x w1 w2.
class Product : public Module {
 public:
  explicit Product(const at::TensorOptions& options) {
    first = add_parameter("w1", {4, 4}, options, Init::normal(0.02), true);
    second = add_parameter("w2", {4, 4}, options, Init::normal(0.02), true);
  }
  Parameter first, second;

 protected:
  at::Tensor forward(const at::Tensor& x) override { return x.mm(first.tensor()).mm(second.tensor()); }
};

// A parameter that the forward never touches, and buffers of both kinds.
class Odd : public Module {
 public:
  explicit Odd(const at::TensorOptions& options) {
    used = add_parameter("used", {8, 2}, options, Init::normal(0.02), true);
    unused = add_parameter("unused", {3, 2}, options, Init::constant(1.0), true);
    table = add_buffer(
        "table", [] { return test_values({4}, 3.0); }, options.device(), false);
    counter = add_buffer(
        "counter", [] { return at::full({2}, 7, at::kLong); }, at::kCPU, true);
  }
  Parameter used, unused;
  at::Tensor table, counter;

 protected:
  at::Tensor forward(const at::Tensor& x) override { return x.mm(used.tensor()) + table.sum(); }
};

// A parent without parameters of its own.
class Pair : public Module {
 public:
  explicit Pair(const at::TensorOptions& options) : left(4, 4, false, options), right(4, 4, false, options) {
    add_child("left", left);
    add_child("right", right);
  }
  toys::Linear left, right;

 protected:
  at::Tensor forward(const at::Tensor& x) override { return left(x) + right(x); }
};

}  // namespace

// Catches: a unit that takes its nested unit's parameters, or loses its own.
BOOST_AUTO_TEST_CASE(a_unit_owns_what_no_nested_unit_owns) {
  auto mesh = flat_mesh();
  toys::Nested model(4, kReal);
  ShardingRuntime runtime(model, mesh);
  auto& inner = runtime.fully_shard(model.inner, {});
  auto& outer = runtime.fully_shard(model, {});
  BOOST_TEST(fqns(*inner.groups()[0]) == std::vector<std::string>{"inner.weight"});
  BOOST_TEST(fqns(*outer.groups()[0]) == std::vector<std::string>{"bias"});
}

// Catches: a tied weight stored, counted or updated twice.
BOOST_AUTO_TEST_CASE(a_tied_weight_is_one_parameter_with_two_names) {
  auto mesh = flat_mesh();
  toys::Tied model(8, 4, kReal), plain(8, 4, kReal);
  fill_plain(model);
  fill_plain(plain);
  ShardingRuntime runtime(model, mesh);
  auto& unit = runtime.fully_shard(model, {});
  BOOST_REQUIRE(unit.groups().size() == 1u);
  BOOST_TEST(unit.groups()[0]->plan().parameters.size() == 1u);
  BOOST_TEST(fqns(*unit.groups()[0]) == (std::vector<std::string>{"embed.weight", "head.weight"}));
  BOOST_TEST(unit.groups()[0]->plan().layout.size() == 64 * test_world().size());

  auto x = test_values({2, 8}, 5.0);
  model(x).square().sum().backward();
  plain(x).square().sum().backward();
  BOOST_TEST(at::allclose(full_gradients(runtime).at("embed.weight"), plain.embed.tensor().grad(), 1e-5, 1e-5));
}

// Catches: gradients or optimizer state for frozen weights; frozen and trained ones mixed in one buffer.
BOOST_AUTO_TEST_CASE(frozen_parameters_form_a_group_without_gradient) {
  auto mesh = flat_mesh();
  Pair model(kReal);
  fill_plain(model);
  model.left.weight.slot().requires_grad = false;
  model.left.weight.tensor().set_requires_grad(false);
  auto frozen = model.left.weight.tensor().clone();
  ShardingRuntime runtime(model, mesh);
  auto& unit = runtime.fully_shard(model, {});
  BOOST_REQUIRE(unit.groups().size() == 2u);
  BOOST_TEST(unit.groups()[0]->name() == "root[fp32 frozen]");
  for (int step = 0; step < 2; ++step) {
    model(test_values({2, 4}, 1.0)).sum().backward();
    BOOST_TEST(runtime.flat_shards().size() == 1u);
    for (auto& shard : runtime.flat_shards()) shard.weight.sub_(shard.grad);
    runtime.refresh_weights();
    runtime.zero_grad();
  }
  BOOST_TEST(at::equal(full_weights(runtime).at("left.weight"), frozen));
}

// Catches: parameters of two dtypes in one unit that share a buffer, or a name and with it their optimizer state.
BOOST_AUTO_TEST_CASE(two_dtypes_in_a_unit_are_two_named_groups) {
  auto mesh = flat_mesh();
  Pair model(kReal), plain(kReal);
  fill_plain(model);
  fill_plain(plain);
  auto& right = model.right.weight.slot();
  right.dtype = at::kBFloat16;
  right.tensor = right.tensor.detach().to(at::kBFloat16).set_requires_grad(true);
  plain.right.weight.tensor().detach().copy_(right.tensor.detach());
  ShardingRuntime runtime(model, mesh);
  runtime.fully_shard(model, {});
  std::vector<std::string> names;
  for (auto& shard : runtime.weight_shards()) names.push_back(shard.name);
  BOOST_TEST(names == (std::vector<std::string>{"root[fp32]", "root[bf16]"}), boost::test_tools::per_element());
  auto x = test_values({2, 4}, 2.0);
  model(x).square().sum().backward();
  plain(x).square().sum().backward();
  for (auto& [name, parameter] : named_parameters(plain)) {
    BOOST_TEST(at::allclose(full_gradients(runtime).at(name), parameter.tensor().grad(), 1e-5, 1e-5));
  }
}

// Catches: a parent without parameters that breaks the order or the backward.
BOOST_AUTO_TEST_CASE(a_parent_without_parameters_is_a_unit) {
  auto mesh = flat_mesh();
  Pair model(kReal), plain(kReal);
  fill_plain(model);
  fill_plain(plain);
  ShardingRuntime runtime(model, mesh);
  runtime.fully_shard(model.left, {});
  runtime.fully_shard(model.right, {});
  auto& parent = runtime.fully_shard(model, {});
  BOOST_TEST(parent.groups().empty());
  std::vector<std::string> names;
  for (auto& unit : runtime.units()) names.push_back(unit->name());
  BOOST_TEST(names == (std::vector<std::string>{"left", "right", "root"}));
  auto x = test_values({2, 4}, 2.0).set_requires_grad(true);
  model(x).square().sum().backward();
  plain(x).square().sum().backward();
  for (auto& [name, parameter] : named_parameters(plain)) {
    BOOST_TEST(at::allclose(full_gradients(runtime).at(name), parameter.tensor().grad(), 1e-5, 1e-5));
  }
}

// Catches: meta parameters whose values do not reach the model weights, under any strategy.
BOOST_AUTO_TEST_CASE(meta_golden) {
  for (auto& shape : factorings(test_world().size())) {
    Mesh mesh(test_world(), shape);
    for (auto strategy : kStrategies) {
      Product model(at::TensorOptions(at::kBFloat16).device(at::kMeta));
      ShardingRuntime runtime(model, mesh);
      runtime.fully_shard(model, {.strategy = strategy, .precision = {.param = at::kBFloat16}});
      runtime.for_each_owned(
          [](const OwnedRange& owned) { owned.values.fill_(owned.parameter.fqn() == "w1" ? 2 : 3); });
      runtime.refresh_weights();
      c10::NoGradGuard no_grad;
      auto y = model(at::ones({1, 4}, at::kBFloat16));
      BOOST_TEST((y == 96.0).all().item<bool>());
    }
  }
}

// Catches: training on memory that was never written.
BOOST_AUTO_TEST_CASE(uninitialised_units_are_refused_by_name) {
  auto mesh = flat_mesh();
  toys::Nested model(4, kOnMeta);
  ShardingRuntime runtime(model, mesh);
  runtime.fully_shard(model.inner, {});
  runtime.fully_shard(model, {});
  BOOST_CHECK_EXCEPTION(model(at::ones({1, 4})), LogicError, says("unit root were never initialised"));
}

// Catches: an unused parameter whose gradient is garbage, or that makes a rank skip a reduction.
BOOST_AUTO_TEST_CASE(an_unused_parameter_contributes_zeros) {
  for (auto strategy : kStrategies) {
    auto mesh = flat_mesh();
    Odd model(kReal);
    fill_plain(model);
    ShardingRuntime runtime(model, mesh);
    runtime.fully_shard(model, {.strategy = strategy});
    model(at::ones({1, 8})).sum().backward();
    auto gradients = full_gradients(runtime);
    BOOST_TEST(at::equal(gradients.at("unused"), at::full({3, 2}, 0.0)));
    BOOST_TEST(at::equal(gradients.at("used"), at::full({8, 2}, 1.0)));
  }
}

// Catches: materialisation that overwrites real buffers (Megatron-LM #4155), or leaves meta ones empty.
BOOST_AUTO_TEST_CASE(buffers_real_and_meta_hold_their_values) {
  auto mesh = flat_mesh();
  Odd model(kOnMeta);
  auto* storage = model.counter.const_data_ptr();
  model.counter.fill_(9);  // a value of its own, not the declared one
  ShardingRuntime runtime(model, mesh);
  runtime.fully_shard(model, {});
  BOOST_TEST(model.counter.const_data_ptr() == storage);
  BOOST_TEST(at::equal(model.counter, at::full({2}, 9, at::kLong)));
  BOOST_TEST(at::equal(model.table, test_values({4}, 3.0)));
}

// Catches: an audit that lets a bad weight or a clobbered buffer through, or cannot name it.
BOOST_AUTO_TEST_CASE(the_audit_names_the_first_offender) {
  auto mesh = flat_mesh();
  Odd model(kOnMeta);
  ShardingRuntime runtime(model, mesh);
  runtime.fully_shard(model, {});
  auto fill = [&](double used, double unused) {
    runtime.for_each_owned(
        [&](const OwnedRange& owned) { owned.values.fill_(owned.parameter.fqn() == "used" ? used : unused); });
  };
  fill(0.01, 1.0);
  BOOST_CHECK_NO_THROW(audit_initialisation(runtime));
  fill(0.2, 1.0);
  BOOST_CHECK_EXCEPTION(audit_initialisation(runtime), Error, says("used holds values"));
  fill(0.01, 0.5);
  BOOST_CHECK_EXCEPTION(audit_initialisation(runtime), Error, says("unused holds values from 0.5"));
  fill(0.01, NAN);
  BOOST_CHECK_EXCEPTION(audit_initialisation(runtime), Error, says("unused holds a value that is not finite"));
  fill(0.01, 1.0);
  model.table.fill_(0.0);
  BOOST_CHECK_EXCEPTION(audit_initialisation(runtime), Error, says("buffer table holds"));
}

// Catches: a hash that depends on the mesh, or does not see a swap of two elements.
BOOST_AUTO_TEST_CASE(the_model_hash_is_of_values_not_of_meshes) {
  std::optional<std::uint64_t> first;
  for (auto& shape : factorings(test_world().size())) {
    Mesh mesh(test_world(), shape);
    for (auto strategy : kStrategies) {
      toys::Stack model({8, 16, 4}, true, kReal);
      fill_plain(model);
      ShardingRuntime runtime(model, mesh);
      for (auto& layer : model.layers) runtime.fully_shard(*layer, {.strategy = strategy});
      runtime.fully_shard(model, {.strategy = strategy});
      auto hash = model_hash(runtime);
      if (!first) first = hash;
      BOOST_TEST(hash == *first);
    }
  }
  auto mesh = flat_mesh();
  toys::Stack model({8, 16, 4}, true, kReal);
  fill_plain(model);
  auto weight = model.layers[0]->weight.tensor().detach();
  auto swapped = weight[0][0].clone();
  weight[0][0].copy_(weight[0][1]);
  weight[0][1].copy_(swapped);
  ShardingRuntime runtime(model, mesh);
  runtime.fully_shard(model, {});
  BOOST_TEST(model_hash(runtime) != *first);
}

// Catches: misuse that would train wrongly in silence.
BOOST_AUTO_TEST_CASE(misuse_is_a_logic_error) {
  auto mesh = flat_mesh();
  toys::Nested model(4, kReal), other(4, kReal);
  fill_plain(model);
  auto before = model.bias.tensor();
  ShardingRuntime runtime(model, mesh);
  BOOST_CHECK_EXCEPTION(ShardingRuntime(other, mesh), LogicError, says("scope is open"));
  BOOST_CHECK_EXCEPTION(runtime.fully_shard(other, {}), LogicError, says("not below the root"));
  runtime.fully_shard(model.inner, {});
  BOOST_CHECK_EXCEPTION(runtime.fully_shard(model.inner, {}), LogicError, says("sharded already"));
  BOOST_CHECK_EXCEPTION(runtime.fully_shard(model, {.grad_divisor = 0.0}), ArgumentError, says("grad_divisor"));
  BOOST_TEST(model.bias.tensor().is_same(before));  // a failed call leaves the module as it was
  BOOST_TEST(!model.has_hooks());
  BOOST_CHECK_EXCEPTION(model.inner(at::ones({1, 4})), LogicError, says("before the root was sharded"));
  runtime.fully_shard(model, {});
  BOOST_CHECK_EXCEPTION(runtime.flat_shards(), LogicError, says("no gradients"));
  {
    auto scope = runtime.no_sync();
    model(at::ones({1, 4})).sum().backward();
  }
  BOOST_CHECK_EXCEPTION(runtime.flat_shards(), LogicError, says("pending"));
  runtime.zero_grad();
  BOOST_CHECK_EXCEPTION(runtime.flat_shards(), LogicError, says("no gradients"));
}

// Catches: fp16 and other dtypes that would overflow or be cast in silence.
BOOST_AUTO_TEST_CASE(other_dtypes_are_refused) {
  auto mesh = flat_mesh();
  toys::Linear model(4, 4, false, at::TensorOptions(at::kHalf));
  ShardingRuntime runtime(model, mesh);
  BOOST_CHECK_EXCEPTION(runtime.fully_shard(model, {}), ArgumentError, says("fp16"));
}
