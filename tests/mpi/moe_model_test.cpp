// A whole mixture-of-experts model under the sharding runtime, on every expert mesh: its gradients are those of one
// rank.

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/remainder.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <numeric>

#include "base/hash.h"
#include "moe/balance.h"
#include "plan/plan.h"
#include "plan/sharding.h"
#include "sharding/audit.h"
#include "sharding/gradient_norm.h"
#include "sharding/model_hash.h"
#include "support/sharded_pair.h"
#include "train/initialise.h"

using namespace meshard;

namespace {

constexpr std::int64_t kSequences = 8, kLength = 8, kSeed = 42;

Config small_config() {
  Config config;
  auto& m = config.model;
  m.vocab_size = 40;
  m.hidden_size = 16;
  m.num_hidden_layers = 3;
  m.num_attention_heads = 4;
  m.num_key_value_heads = 2;
  m.head_dim = 8;
  m.intermediate_size = 24;
  m.max_position_embeddings = kLength;
  m.initializer_range = 0.2;
  auto& moe = m.moe.emplace();
  moe.n_routed_experts = 8;
  moe.num_experts_per_tok = 2;
  moe.n_shared_experts = 1;
  moe.moe_intermediate_size = 12;
  moe.first_k_dense_replace = 1;
  moe.routed_scaling_factor = 1.5;
  moe.aux_loss = {AuxLossConfig::Type::Sequence, 0.5};
  moe.z_loss_coeff = 0.5;
  return config;
}

at::Tensor tokens(int shift, at::Device device = at::kCPU) {
  auto whole = (at::arange(kSequences * (kLength + 1), at::kLong) * 7).remainder(40).view({kSequences, kLength + 1});
  return whole.narrow(1, shift, kLength).to(device).contiguous();
}

using Gradients = std::map<std::string, at::Tensor>;

struct Step {
  Gradients gradients;  // of routed experts: this rank's rows
  double norm = 0.0;
  std::uint64_t hash = 0;
  StepBalance balance;
  std::int64_t unsharded_bytes = 0;
};

// One step on `mesh`, each rank on its share of the sequences.
Step run_step(Mesh& mesh, const Config& config, std::int64_t microbatches) {
  auto& world = mesh.world();
  ExpertParallel parallel{config.parallel.expert, mesh.coordinate(Axis::Expert), &mesh.axis(Axis::Expert)};
  auto model = build_model(config, at::kMeta, parallel);
  ShardingRuntime runtime(*model.lm, mesh);
  for (auto& unit : model_units(model)) runtime.fully_shard(unit.modules, shard_options(config, unit));
  initialise_sharded(runtime, kSeed);
  audit_initialisation(runtime);
  Balance balance(*model.moe, world, mesh.axis(Axis::World), mesh.axis(Axis::DpShard));

  Step step;
  step.hash = model_hash(runtime);
  auto rows = kSequences / world.size() / microbatches;
  auto scale = world.size() / double(kSequences * kLength);
  for (std::int64_t a = 0; a < microbatches; ++a) {
    auto scope = runtime.no_sync(a + 1 < microbatches);
    auto first = (a * world.size() + world.rank()) * rows;
    balance.begin_microbatch(scale);
    auto device = world.device();
    model.lm->loss(tokens(0, device).narrow(0, first, rows), tokens(1, device).narrow(0, first, rows), scale)
        .backward();
    balance.end_microbatch(a, microbatches);
  }
  step.gradients = full_gradients(runtime);
  step.norm = gradient_norm(runtime).value;
  step.balance = balance.end_step(true);
  step.unsharded_bytes = runtime.unsharded_bytes();
  return step;
}

std::int64_t planned_unsharded(Config config, const MeshShape& mesh) {
  config.parallel.dp_outer = mesh.dp_outer();
  config.parallel.dp_shard = mesh.dp_shard();
  config.train.global_batch_size = kSequences;
  config.train.seq_len = kLength;
  return make_plan(config, mesh.ranks()).bytes.unsharded_peak;
}

struct Reference {
  Gradients gradients;
  double norm = 0.0;
  std::vector<std::vector<std::int64_t>> counts;
};

Reference collect(Model& model) {
  Reference reference;
  ModuleNames names(*model.lm);
  double squares = 0.0;
  for (auto& [fqn, parameter] : names.parameters()) {
    if (fqn != names.of(parameter).front()) continue;  // tied
    auto grad = parameter.tensor().grad();
    squares += grad.square().sum().item<double>();
    reference.gradients[fqn] = grad;
  }
  reference.norm = std::sqrt(squares);
  for (auto* layer : model.moe->list()) {
    auto counts = layer->router().counts();
    auto* count = counts.const_data_ptr<std::int64_t>();
    reference.counts.emplace_back(count, count + counts.numel());
  }
  return reference;
}

// All sequences on one rank, without sharding, `sequences` at a time.
Reference one_rank(const Config& config, std::int64_t sequences = kSequences) {
  auto model = build_model(config, at::kCPU, {});
  initialise_whole(*model.lm, kSeed);
  auto scale = 1.0 / (kSequences * kLength);
  model.moe->pass() = {.training = true, .loss_scale = scale};
  for (std::int64_t i = 0; i < kSequences; i += sequences) {
    model.lm->loss(tokens(0).narrow(0, i, sequences), tokens(1).narrow(0, i, sequences), scale).backward();
  }
  return collect(model);
}

void compare(const Step& step, const Reference& expected, const Mesh& mesh, int ep) {
  BOOST_TEST(step.gradients.size() == expected.gradients.size());
  for (auto& [fqn, whole] : expected.gradients) {
    auto& grad = step.gradients.at(fqn);
    bool routed = fqn.find(".experts.") != std::string::npos;
    auto rows = whole.size(0) / (routed ? ep : 1);
    auto part = routed ? whole.narrow(0, mesh.coordinate(Axis::Expert) * rows, rows) : whole;
    BOOST_TEST(at::allclose(grad, part, 1e-4, 1e-6), fqn << " differs by " << (grad - part).abs().max().item<double>());
  }
  BOOST_TEST(step.norm == expected.norm, boost::test_tools::tolerance(1e-5));
  for (std::size_t i = 0; i < expected.counts.size(); ++i) {
    BOOST_TEST(step.balance.layers[i].counts == expected.counts[i], boost::test_tools::per_element());
  }
}

struct Case {
  int outer, inner, ep;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (auto& c : {Case{1, 1, 1}, {2, 1, 2}, {2, 2, 1}, {1, 4, 2}, {2, 2, 2}, {1, 4, 4}, {2, 2, 4}, {2, 4, 4}}) {
    if (c.outer * c.inner == test_world().size()) all.push_back(c);
  }
  return all;
}

}  // namespace

// Catches: an expert gradient ep times too large or averaged over the wrong ranks; a dense or router gradient that
// expert parallelism disturbs; auxiliary losses that depend on the mesh; tokens lost or counted twice on the way; first
// weights of an expert that depend on the rank that holds it; a plan that counts other blocks than the runtime takes.
BOOST_AUTO_TEST_CASE(every_gradient_equals_one_rank_on_every_expert_mesh) {
  auto& world = test_world();
  auto expected = one_rank(small_config());
  std::optional<std::uint64_t> hash;
  for (auto [outer, inner, ep] : cases()) {
    Mesh mesh(world, {world.size(), outer, inner, ep});
    for (auto strategy : kStrategies) {
      for (bool recompute : {false, true}) {
        auto config = small_config();
        config.parallel.expert = ep;
        config.parallel.strategy = strategy;
        if (recompute) config.train.activation_checkpoint = TrainConfig::Checkpointing::Full;
        std::int64_t microbatches = recompute && world.size() < kSequences ? 2 : 1;
        BOOST_TEST_CONTEXT("outer " << outer << " inner " << inner << " ep " << ep << " " << to_string(strategy)
                                    << (recompute ? ", recomputed" : "")) {
          auto step = run_step(mesh, config, microbatches);
          compare(step, expected, mesh, ep);
          BOOST_TEST(step.hash == hash.value_or(step.hash));
          hash = step.hash;
          if (microbatches > 1) BOOST_TEST(step.unsharded_bytes == planned_unsharded(config, mesh.shape()));
        }
      }
    }
  }
}

// Catches: recomputation that changes a single bit, or routes or counts anew.
BOOST_AUTO_TEST_CASE(recomputation_is_bitwise_the_same) {
  auto& world = test_world();
  for (auto [outer, inner, ep] : cases()) {
    Mesh mesh(world, {world.size(), outer, inner, ep});
    auto config = small_config();
    config.parallel.expert = ep;
    auto plain = run_step(mesh, config, 1);
    config.train.activation_checkpoint = TrainConfig::Checkpointing::Full;
    auto again = run_step(mesh, config, 1);
    for (auto& [fqn, grad] : plain.gradients) BOOST_TEST(at::equal(grad, again.gradients.at(fqn)), fqn << " differs");
    for (std::size_t i = 0; i < plain.balance.layers.size(); ++i) {
      BOOST_TEST(plain.balance.layers[i].counts == again.balance.layers[i].counts, boost::test_tools::per_element());
      BOOST_TEST(plain.balance.layers[i].bias == again.balance.layers[i].bias, boost::test_tools::per_element());
    }
    BOOST_TEST(plain.balance.aux_loss == again.balance.aux_loss);
    BOOST_TEST(plain.balance.z_loss == again.balance.z_loss);
  }
}

// Catches: softmax routing, groups, capacity, switch losses or real first tensors that part from one rank. Capacity and
// the switch loss go by microbatch: one sequence each, on every mesh.
BOOST_AUTO_TEST_CASE(variants_equal_one_rank) {
  auto& world = test_world();
  for (auto [outer, inner, ep] : cases()) {
    Mesh mesh(world, {world.size(), outer, inner, ep});
    for (int variant = 0; variant < 2; ++variant) {
      auto config = small_config();
      config.parallel.expert = ep;
      auto& moe = *config.model.moe;
      if (variant == 0) {
        moe.scoring_func = MoeConfig::Scoring::Softmax;
        moe.expert_bias.enabled = false;
        moe.n_shared_experts = 0;
        moe.first_k_dense_replace = 0;
        config.model.use_qk_norm = true;
      } else {
        moe.n_group = 4;
        moe.topk_group = 2;
        moe.norm_topk_prob = false;
        config.model.attention_bias = true;
        config.model.tie_word_embeddings = true;
      }
      BOOST_TEST_CONTEXT("variant " << variant << ", outer " << outer << " inner " << inner << " ep " << ep) {
        auto expected = one_rank(config);
        auto step = run_step(mesh, config, 1);
        compare(step, expected, mesh, ep);
      }
    }
  }
}

// Catches: capacity and the switch loss that depend on more than the microbatch of one rank.
BOOST_AUTO_TEST_CASE(capacity_and_switch_loss_go_by_microbatch) {
  auto& world = test_world();
  auto config = small_config();
  auto& moe = *config.model.moe;
  moe.capacity_factor = 0.75;
  moe.aux_loss = {AuxLossConfig::Type::Switch, 0.5};
  auto expected = one_rank(config, 1);
  std::int64_t kept = 0;
  for (auto& counts : expected.counts) kept += std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  auto dropped = static_cast<std::int64_t>(expected.counts.size()) * kSequences * kLength * 2 - kept;
  BOOST_TEST(dropped > 0);
  for (auto [outer, inner, ep] : cases()) {
    Mesh mesh(world, {world.size(), outer, inner, ep});
    config.parallel.expert = ep;
    auto step = run_step(mesh, config, kSequences / world.size());
    compare(step, expected, mesh, ep);
    for (auto& layer : step.balance.layers) dropped -= layer.dropped;
    BOOST_TEST(dropped == 0);
    for (auto& layer : step.balance.layers) dropped += layer.dropped;
  }
}

// Catches: an expert bias in bf16, or one that sharding, casting or materialising touches.
BOOST_AUTO_TEST_CASE(bf16_model_keeps_the_bias) {
  auto& world = test_world();
  for (auto [outer, inner, ep] : cases()) {
    Mesh mesh(world, {world.size(), outer, inner, ep});
    auto config = small_config();
    config.parallel.expert = ep;
    config.precision.param = Dtype::Bf16;
    config.model.moe->expert_bias.initial = 1.0;
    auto expected = one_rank(small_config());
    auto step = run_step(mesh, config, 1);
    for (auto& layer : step.balance.layers) {
      // 1 + 1e-3 is no bf16 number.
      BOOST_TEST(layer.bias_max == 1.0f + 1e-3f);
      BOOST_TEST(layer.count_total == kSequences * kLength * 2);
    }
    BOOST_TEST(step.norm == expected.norm, boost::test_tools::tolerance(0.1));
  }
}
