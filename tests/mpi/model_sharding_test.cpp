// The whole language model under the sharding runtime: fused backward passes that write into sinks, recomputation,
// tied weights, microbatches.

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/remainder.h>

#include <boost/test/unit_test.hpp>

#include "base/hash.h"
#include "nn/causal_lm.h"
#include "nn/init.h"
#include "support/forward_count.h"
#include "support/sharded_pair.h"

using namespace meshard;

namespace {

DecoderOptions small_config() {
  DecoderOptions config;
  config.vocab_size = 40;
  config.hidden_size = 16;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.intermediate_size = 24;
  config.max_position_embeddings = 12;
  config.rms_norm_eps = 1e-5;
  config.initializer_range = 0.1;
  return config;
}

at::Tensor ids(int step, int sequences, int shift, at::Device device = at::kCPU) {
  auto whole = (at::arange(sequences * 13, at::kLong) * 7 + step * 5).remainder(40).view({sequences, 13});
  return whole.narrow(1, shift, 12).to(device).contiguous();
}

void fill(at::Tensor values, const Slot& slot, const std::string& fqn, std::int64_t begin) {
  fill_initial(values, slot.init, 42, hash_text(fqn), begin);
}

std::map<std::string, at::Tensor> one_rank_gradients(const DecoderOptions& config, int sequences) {
  CausalLM model(config, at::kFloat);
  ModuleNames names(model);
  for (auto& [fqn, parameter] : names.parameters()) {
    if (names.of(parameter).front() == fqn) fill(parameter.tensor().detach().view({-1}), parameter.slot(), fqn, 0);
  }
  model.loss(ids(0, sequences, 0), ids(0, sequences, 1), 1.0 / (sequences * 12)).backward();
  std::map<std::string, at::Tensor> gradients;
  for (auto& [fqn, parameter] : names.parameters()) gradients[names.of(parameter).front()] = parameter.tensor().grad();
  return gradients;
}

// `forwards`: how often an MLP ran in all.
std::map<std::string, at::Tensor> sharded_gradients(Mesh& mesh, const DecoderOptions& config,
                                                    const ShardOptions& options, int sequences, int microbatches,
                                                    int* forwards = nullptr) {
  auto& world = test_world();
  CausalLM model(config, at::TensorOptions(options.precision.param).device(at::kMeta));
  ShardingRuntime runtime(model, mesh);
  for (auto* layer : model.layers()) runtime.fully_shard(*layer, options);
  runtime.fully_shard(model, options);
  runtime.for_each_owned([](const OwnedRange& owned) {
    auto values = owned.values.cpu();
    fill(values, owned.parameter.parameter.slot(), owned.parameter.fqn(), owned.elements.begin);
    owned.values.copy_(values);
  });
  runtime.refresh_weights();
  auto count = count_forwards(model.layers(), "mlp");
  auto rows = sequences / world.size() / microbatches;
  for (int step = 0; step < 2; ++step) {  // the second step runs by the recorded order
    runtime.zero_grad();
    for (int a = 0; a < microbatches; ++a) {
      auto scope = runtime.no_sync(a + 1 < microbatches);
      auto first = (a * world.size() + world.rank()) * rows;
      model
          .loss(ids(0, sequences, 0, world.device()).narrow(0, first, rows),
                ids(0, sequences, 1, world.device()).narrow(0, first, rows), world.size() / (sequences * 12.0))
          .backward();
    }
  }
  if (forwards) *forwards = *count;
  return full_gradients(runtime);
}

}  // namespace

// Catches: a gradient that the fused backwards, the sinks, recomputation or tying change under any strategy.
BOOST_AUTO_TEST_CASE(every_gradient_equals_one_rank) {
  int sequences = 4 * test_world().size();
  for (int variant = 0; variant < 4; ++variant) {
    auto config = small_config();
    config.recompute = variant == 1;
    config.tie_word_embeddings = variant == 2;
    config.use_qk_norm = config.attention_bias = config.attention_output_bias = variant == 3;
    auto expected = one_rank_gradients(config, sequences);
    for (auto& shape : factorings(test_world().size())) {
      Mesh mesh(test_world(), shape);
      for (auto strategy : kStrategies) {
        for (int microbatches : {1, 2}) {
          BOOST_TEST_CONTEXT(to_string(strategy)
                             << " on " << shape.dp_outer() << " x " << shape.dp_shard() << ", variant " << variant
                             << ", " << microbatches << " microbatches") {
            auto actual = sharded_gradients(mesh, config, {.strategy = strategy}, sequences, microbatches);
            BOOST_TEST(actual.size() == expected.size());
            for (auto& [fqn, grad] : expected) {
              BOOST_TEST(at::allclose(actual.at(fqn), grad, 1e-4, 1e-6), fqn << " differs");
            }
          }
        }
      }
    }
  }
}

// Catches: recomputation that changes a single bit, or does not take place.
BOOST_AUTO_TEST_CASE(recomputation_is_bitwise_the_same) {
  auto& world = test_world();
  Mesh mesh(world, {world.size(), 1, world.size()});
  auto config = small_config();
  int once = 0, twice = 0;
  auto plain = sharded_gradients(mesh, config, {}, 4 * world.size(), 2, &once);
  config.recompute = true;
  for (auto& [fqn, grad] : sharded_gradients(mesh, config, {}, 4 * world.size(), 2, &twice)) {
    BOOST_TEST(at::equal(grad, plain.at(fqn)), fqn << " differs");
  }
  BOOST_TEST(once == 2 * 2 * config.num_hidden_layers);  // steps, microbatches
  BOOST_TEST(twice == 2 * once);
}

// Catches: bf16 parameters with fp32 gradients on the wire (or bf16 ones) that end up scaled or garbled.
BOOST_AUTO_TEST_CASE(bf16_gradients_are_close) {
  auto& world = test_world();
  auto config = small_config();
  auto expected = one_rank_gradients(config, 2 * world.size());
  for (auto& shape : factorings(world.size())) {
    Mesh mesh(world, shape);
    for (auto strategy : kStrategies) {
      for (auto reduce : {at::kFloat, at::kBFloat16}) {
        Precision precision{.param = at::kBFloat16, .reduce = reduce};
        for (auto& [fqn, grad] : sharded_gradients(mesh, config, {strategy, precision}, 2 * world.size(), 2)) {
          auto scale = expected.at(fqn).abs().max().item<double>();
          auto error = (grad - expected.at(fqn)).abs().max().item<double>();
          BOOST_TEST(error <= 0.05 * scale, fqn << ": error " << error << " of " << scale);
        }
      }
    }
  }
}
