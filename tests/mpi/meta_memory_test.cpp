// Proof that no rank ever holds a full model: 2.0 GB of fp32 weights on 4 ranks, each allowed 1.6 GB of address space
// beyond what MPI and the libraries take.

#include <ATen/ops/full.h>
#include <sys/resource.h>

#include <boost/test/unit_test.hpp>
#include <fstream>

#include "base/hash.h"
#include "nn/causal_lm.h"
#include "nn/init.h"
#include "sharding/audit.h"
#include "support/sharded_pair.h"

using namespace meshard;

namespace {

constexpr std::int64_t kAllowance = 1'600'000'000;

std::int64_t address_space() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kilobytes = 0;
    if (word == "VmSize:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

// Limits this process while it lives.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(std::int64_t bytes) {
    getrlimit(RLIMIT_AS, &before_);
    rlimit limit{static_cast<rlim_t>(bytes), before_.rlim_max};
    BOOST_REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
  }
  ~AddressSpaceLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

DecoderOptions many_small_blocks() {
  DecoderOptions config;
  config.vocab_size = 264;
  config.hidden_size = 512;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 8;
  config.head_dim = 64;
  config.intermediate_size = 2048;
  config.num_hidden_layers = 120;  // 4.2 M parameters each: 500 M in all
  config.max_position_embeddings = 16;
  return config;
}

}  // namespace

// Catches: a full weight, gradient or optimizer state on any host; storage that grows with the number of units.
BOOST_AUTO_TEST_CASE(two_gigabytes_of_weights_train_within_the_limit) {
  auto& world = test_world();
  AddressSpaceLimit limit(address_space() + kAllowance);
  Mesh mesh(world, {world.size(), 1, world.size()});
  CausalLM model(many_small_blocks(), at::TensorOptions(at::kFloat).device(at::kMeta));
  std::int64_t weights = 0;
  for (auto& [fqn, parameter] : named_parameters(model)) weights += parameter.tensor().numel() * 4;
  BOOST_TEST(weights >= 2'000'000'000);

  ShardingRuntime runtime(model, mesh);
  for (auto* layer : model.layers()) runtime.fully_shard(*layer, {});
  runtime.fully_shard(model, {});
  runtime.for_each_owned([](const OwnedRange& owned) {
    fill_initial(owned.values, owned.parameter.parameter.slot().init, 7, hash_text(owned.parameter.fqn()),
                 owned.elements.begin);
  });
  runtime.refresh_weights();
  audit_initialisation(runtime);

  auto ids = at::full({1, 8}, 1 + world.rank(), at::kLong);
  auto loss = model.loss(ids, ids, 1.0 / 8);
  loss.backward();
  for (auto& shard : runtime.flat_shards()) shard.weight.sub_(shard.grad, 0.01);
  runtime.refresh_weights();
  runtime.zero_grad();
  BOOST_TEST(std::isfinite(loss.item<double>()));
  BOOST_TEST(runtime.unsharded_bytes() < 200'000'000);
}
