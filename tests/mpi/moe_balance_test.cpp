// Counts over the ranks and the expert bias that follows from them.

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <boost/test/unit_test.hpp>

#include "base/error.h"
#include "mesh/mesh.h"
#include "moe/balance.h"
#include "support/mpi_test.h"

using namespace meshard;

namespace {

MoeOptions two_experts() {
  MoeOptions options;
  options.hidden_size = 4;
  options.moe_intermediate_size = 4;
  options.n_routed_experts = 2;
  options.expert_bias.update_rate = 0.25;
  return options;
}

struct Fixture {
  explicit Fixture(MoeOptions options, int outer = 1)
      : world(test_world()),
        mesh(world, {world.size(), outer, world.size() / outer}),
        layers(options, 0, {}),
        first(layers.make(0, at::kFloat)),
        second(layers.make(1, at::kFloat)),
        balance(layers, world, mesh.axis(Axis::World), mesh.axis(Axis::DpShard)) {}

  Router& router(int i) { return layers.list()[i]->router(); }
  void count(int layer, std::vector<std::int64_t> counts) { router(layer).counts().copy_(at::tensor(counts)); }

  World& world;
  Mesh mesh;
  MoeLayers layers;
  std::unique_ptr<Module> first, second;
  Balance balance;
};

std::vector<float> values(const at::Tensor& tensor) {
  auto flat = tensor.to(at::kFloat).contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

using Bias = std::vector<float>;

}  // namespace

// Catches: a bias that moves the wrong way, by a local mean, or by counts of one rank; counts that survive; more than
// one synchronisation a step.
BOOST_AUTO_TEST_CASE(golden_update) {
  Fixture f(two_experts());
  if (f.world.rank() == 0) f.count(0, {0, 2});
  f.world.ledger().clear();

  auto step = f.balance.end_step(true);

  BOOST_TEST(values(f.router(0).bias()) == (Bias{0.25f, -0.25f}), boost::test_tools::per_element());
  BOOST_TEST(values(f.router(1).bias()) == (Bias{0.0f, 0.0f}), boost::test_tools::per_element());
  BOOST_TEST(values(f.router(0).counts()) == (Bias{0.0f, 0.0f}), boost::test_tools::per_element());
  BOOST_TEST(step.layers[0].count_total == 2);
  BOOST_TEST(step.layers[0].max_vio == 1.0);
  BOOST_TEST(step.layers[0].dead == 1);
  BOOST_TEST(step.layers[1].dead == 2);
  BOOST_TEST(step.layers[0].bias_min == -0.25f);
  BOOST_TEST(step.layers[0].bias_max == 0.25f);
  auto sent = f.world.ledger().at("all_reduce", "world");
  BOOST_TEST(sent.count == 1);
  BOOST_TEST(sent.bytes == all_reduce_bytes(2 * 2 * 8, f.world.size()));
}

// Catches: signs by a rounded mean, or from ranks that are added up one by one.
BOOST_AUTO_TEST_CASE(signs_are_decided_in_integers_over_all_ranks) {
  auto options = two_experts();
  options.n_routed_experts = 4;
  Fixture f(options);
  bool first = f.world.rank() == 0;
  f.count(0, first ? std::vector<std::int64_t>{257, 255, 256, 256} : std::vector<std::int64_t>{0, 0, 0, 0});
  // A third of 2^60: a mean in floating point would call some of these equal.
  constexpr std::int64_t kLarge = 1152921504606846976 / 3;
  f.count(1, first ? std::vector<std::int64_t>{kLarge, kLarge + 1, kLarge, kLarge - 1}
                   : std::vector<std::int64_t>{0, 0, 0, 0});

  f.balance.end_step(true);

  for (int layer : {0, 1}) {
    auto expected = layer == 0 ? Bias{-0.25f, 0.25f, 0.0f, 0.0f} : Bias{0.0f, -0.25f, 0.0f, 0.25f};
    BOOST_TEST(values(f.router(layer).bias()) == expected, boost::test_tools::per_element());
  }
}

// Catches: counters whose fault does not show, or shows without it (Megatron-LM #7081).
BOOST_AUTO_TEST_CASE(counts_in_bf16_lose_the_signs) {
  auto options = two_experts();
  options.n_routed_experts = 4;
  options.fault = Fault::CountsInBf16;
  Fixture f(options);
  if (f.world.rank() == 0) f.count(0, {257, 255, 256, 256});

  f.balance.end_step(true);

  BOOST_TEST(values(f.router(0).bias()) == (Bias{0.0f, 0.25f, 0.0f, 0.0f}), boost::test_tools::per_element());
}

// Catches: a skipped optimizer step that moves the bias or leaves its counts to the next one; a frozen router updated;
// a recentred bias whose mean drifts; a bias that moves although it is off.
BOOST_AUTO_TEST_CASE(when_the_bias_stays) {
  Fixture skipped(two_experts());
  skipped.count(0, {0, 2});
  auto step = skipped.balance.end_step(false);
  BOOST_TEST(step.layers[0].count_total == 2 * skipped.world.size());
  skipped.balance.end_step(true);
  BOOST_TEST(values(skipped.router(0).bias()) == (Bias{0.0f, 0.0f}), boost::test_tools::per_element());

  Fixture frozen(two_experts());
  frozen.router(0).parameters().front().parameter.slot().requires_grad = false;
  frozen.count(0, {0, 2});
  frozen.count(1, {0, 2});
  frozen.balance.end_step(true);
  BOOST_TEST(values(frozen.router(0).bias()) == (Bias{0.0f, 0.0f}), boost::test_tools::per_element());
  BOOST_TEST(values(frozen.router(1).bias()) == (Bias{0.25f, -0.25f}), boost::test_tools::per_element());

  auto options = two_experts();
  options.n_routed_experts = 4;
  options.expert_bias.recenter = true;
  Fixture recentred(options);
  recentred.count(0, {0, 0, 0, 4});
  recentred.balance.end_step(true);
  BOOST_TEST(values(recentred.router(0).bias()) == (Bias{0.125f, 0.125f, 0.125f, -0.375f}),
             boost::test_tools::per_element());

  options = two_experts();
  options.expert_bias.enabled = false;
  Fixture off(options);
  off.count(0, {0, 2});
  off.balance.end_step(true);
  BOOST_TEST(values(off.router(0).bias()) == (Bias{0.0f, 0.0f}), boost::test_tools::per_element());
}

// Catches: a fault that moves the bias other than once per microbatch, or loses what was counted.
BOOST_AUTO_TEST_CASE(update_per_microbatch_moves_it_every_time) {
  auto options = two_experts();
  options.fault = Fault::UpdatePerMicrobatch;
  Fixture f(options);
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    f.balance.begin_microbatch(1.0);
    f.count(0, {0, 2});
    f.balance.end_microbatch(microbatch, 3);
  }
  auto step = f.balance.end_step(true);
  BOOST_TEST(values(f.router(0).bias()) == (Bias{0.75f, -0.75f}), boost::test_tools::per_element());
  BOOST_TEST(step.layers[0].count_total == 6 * f.world.size());
}

// Catches: replicas that part unseen, or a check that names the wrong ranks.
BOOST_AUTO_TEST_CASE(replicas_are_compared) {
  Fixture f(two_experts());
  f.balance.check_replicas();
  if (f.world.rank() == f.world.size() - 1) f.router(1).bias().add_(1e-7);
  BOOST_CHECK_EXCEPTION(f.balance.check_replicas(), ReplicaError, [&](const ReplicaError& error) {
    auto expected = "layer 1 on rank " + std::to_string(f.world.size() - 1);
    return std::string(error.what()).find(expected) != std::string::npos &&
           std::string(error.what()).find("layer 0") == std::string::npos;
  });
}

// Catches: a fault without effect: counts summed over dp_shard only make the replicas' biases part.
BOOST_AUTO_TEST_CASE(no_outer_reduce_parts_the_replicas) {
  for (auto fault : {Fault::None, Fault::NoOuterReduce}) {
    auto options = two_experts();
    options.fault = fault;
    Fixture f(options, /*outer=*/2);
    bool first_replica = f.mesh.coordinate(Axis::DpOuter) == 0;
    f.count(0, first_replica ? std::vector<std::int64_t>{0, 2} : std::vector<std::int64_t>{2, 0});
    f.balance.end_step(true);
    if (fault == Fault::None) {
      f.balance.check_replicas();
      BOOST_TEST(values(f.router(0).bias()) == (Bias{0.0f, 0.0f}), boost::test_tools::per_element());
    } else {
      BOOST_CHECK_THROW(f.balance.check_replicas(), ReplicaError);
    }
  }
}
