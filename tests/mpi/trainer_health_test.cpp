// A trainer that meets a value that is not finite: it stops before the optimizer step and says what and where.

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "config/config.h"
#include "data/corpus.h"
#include "plan/assemble.h"
#include "sharding/model_hash.h"
#include "support/mpi_test.h"
#include "train/assemble.h"
#include "train/initialise.h"
#include "train/trainer.h"

using namespace meshard;

namespace {

constexpr auto kConfig = R"(
schema: 1
model:
  {vocab_size: 64, hidden_size: 16, num_hidden_layers: 3, num_attention_heads: 2, intermediate_size: 32,
   moe: {n_routed_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 8, first_k_dense_replace: 1}}
train: {steps: 3, global_batch_size: 8, micro_batch_size: 1, seq_len: 8}
data: {type: synthetic}
logging: {interval: 1}
)";

// A run on all ranks, as train/run.cpp sets it up, up to its first step.
struct Run {
  explicit Run(const std::string& name)
      : world(test_world()),
        ep(world.size() % 2 == 0 ? 2 : 1),
        config(parse_config(kConfig, "test.yaml", {"parallel.expert=" + std::to_string(ep)}, world.size())),
        mesh(world, mesh_shape(config, world.size())),
        model(build_model(config, at::kMeta, {ep, mesh.coordinate(Axis::Expert), &mesh.axis(Axis::Expert)})),
        context(*model.lm, mesh),
        optimizer(make_optimizer(config)),
        corpus(open_corpus(corpus_options(config))),
        batches(*corpus, config, world),
        log(false),
        metrics(world, log, config, std::filesystem::path(test_folder()) / name, false, 1.0),
        stop(world, std::filesystem::path(test_folder()) / "STOP", std::nullopt),
        balance(*model.moe, world, mesh.axis(Axis::World), mesh.axis(Axis::DpShard)) {
    for (auto& unit : model_units(model)) context.fully_shard(*unit.module, shard_options(config, unit));
    initialise_sharded(context, 1);
  }

  std::string message_of_its_end() {
    Checkpoints checkpoints(world, log, posix_file_system(), std::filesystem::path(test_folder()) / "checkpoints",
                            {config, context, *optimizer});
    Trainer trainer(config, {*model.lm, context, *optimizer, batches, metrics, stop, checkpoints, &balance});
    try {
      trainer.run(false);
    } catch (const NonFiniteError& error) {
      return error.what();
    }
    return "it went on";
  }

  World& world;
  int ep;
  Config config;
  Mesh mesh;
  Model model;
  ShardingContext context;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Corpus> corpus;
  Batches batches;
  Log log;
  Metrics metrics;
  StopRequests stop;
  Balance balance;
};

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

// Catches: an optimizer step on NaN gradients; a message that drowns the one bad weight among the gradients that it
// spoilt, or that only the rank that holds it can give.
BOOST_AUTO_TEST_CASE(a_nan_in_a_router_is_named) {
  Run run("router.jsonl");
  run.context.for_each_owned([](const OwnedRange& owned) {
    bool first = owned.begin == 0 && owned.parameter.fqn() == "model.layers.2.mlp.gate.weight";
    if (first) owned.values[0] = std::numeric_limits<float>::quiet_NaN();
  });
  run.context.refresh_weights();
  auto before = model_hash(run.context);

  auto message = run.message_of_its_end();

  BOOST_TEST(says(message, "step 1: not finite: weight model.layers.2.mlp.gate.weight, gradient of "), message);
  BOOST_TEST(model_hash(run.context) == before);
}

// Catches: a bias that is not finite and trains on, or takes the optimizer step with it.
BOOST_AUTO_TEST_CASE(a_nan_in_an_expert_bias_is_named) {
  Run run("bias.jsonl");
  run.model.moe->list()[1]->router().bias()[3] = std::numeric_limits<float>::quiet_NaN();
  auto before = model_hash(run.context);

  auto message = run.message_of_its_end();

  BOOST_TEST(says(message, "step 1: not finite: expert bias of layer 2;"), message);
  BOOST_TEST(model_hash(run.context) == before);
}
