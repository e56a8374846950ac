#include "train/run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "plan/assemble.h"
#include "plan/plan.h"
#include "sharding/audit.h"
#include "sharding/model_hash.h"
#include "train/assemble.h"
#include "train/faults.h"
#include "train/initialise.h"
#include "train/routing_tap.h"
#include "train/startup.h"

namespace meshard {

namespace {

// Cores of the node shared among its ranks, but no more than this rank may run on.
int threads_per_rank(const Config& config, const World& world) {
  if (config.run.threads > 0) return config.run.threads;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, std::min(CPU_COUNT(&allowed), cores / world.place().local_size));
}

// Local work that every rank must have done: an error of one becomes an error of all.
template <class Work>
auto together(World& world, const Work& work) {
  decltype(work()) result{};
  std::string problem;
  ExitCode code = kExitFailure;
  try {
    result = work();
  } catch (const Error& error) {
    problem = error.what();
    code = error.code();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  world.raise_together(problem, code);
  return result;
}

std::filesystem::path folder_of(const Config& config, const RunOptions& options) {
  return options.run_dir.value_or(std::filesystem::path(config.run.dir) / config.run.name);
}

// Forward and backward cost three times the forward's 2 flops per weight and token; attention adds its two products
// over the sequence (all of it, as is usual, though half is masked). The embedding is a look-up.
double flops_per_token(const Config& config, std::int64_t parameters) {
  auto& model = config.model;
  auto embedding = model.tie_word_embeddings ? 0 : model.vocab_size * model.hidden_size;
  auto attention = 12.0 * static_cast<double>(model.num_hidden_layers * model.num_attention_heads * model.head_dim) *
                   static_cast<double>(config.train.seq_len);
  return 6.0 * static_cast<double>(parameters - embedding) + attention;
}

// The model, sharded and initialised. The context refers to the model, so it goes first.
struct ShardedModel {
  Model model;
  std::unique_ptr<ShardingContext> context;
};

ShardedModel shard_and_initialise(const Config& config, Mesh& mesh) {
  bool meta = config.init.device == InitConfig::Device::Meta;
  ShardedModel sharded;
  ExpertParallel parallel{config.parallel.expert, mesh.coordinate(Axis::Expert), &mesh.axis(Axis::Expert)};
  sharded.model = build_model(config, meta ? at::kMeta : at::kCPU, parallel);
  auto& lm = *sharded.model.lm;
  if (!meta) initialise_whole(lm, config.run.seed);
  sharded.context = std::make_unique<ShardingContext>(lm, mesh, config.parallel.prefetch);
  for (auto& unit : model_units(sharded.model)) {
    sharded.context->fully_shard(*unit.module, shard_options(config, unit));
  }
  strike_at_start(fault_of(config.regression.fault), lm, scalar_type(config.precision.param));
  if (meta) initialise_sharded(*sharded.context, config.run.seed);
  if (config.regression.guards) audit_initialisation(*sharded.context);
  return sharded;
}

Outcome train_to_the_end(Trainer& trainer, Metrics& metrics, bool progress) {
  try {
    auto outcome = trainer.run(progress);
    metrics.end(outcome.exit_code, trainer.steps_done(), outcome.reason);
    return outcome;
  } catch (const NonFiniteError& error) {  // all ranks agree on these: an orderly end
    metrics.end(error.code(), trainer.steps_done(), error.what());
    throw;
  } catch (const ReplicaError& error) {
    metrics.end(error.code(), trainer.steps_done(), error.what());
    throw;
  }
}

}  // namespace

Outcome run_training(World& world, const Config& config, const RunOptions& options, Log& log) {
  auto resolved = resolved_yaml(config);
  check_same_config(world, resolved);
  at::set_num_threads(threads_per_rank(config, world));
  world.set_timeout(std::chrono::seconds(config.comm.timeout_s));

  // Before the folder: what cannot train must not cost an earlier run its results.
  auto corpus = together(world, [&] { return open_corpus(corpus_options(config)); });
  auto tap = together(world, [&] { return open_replay(config); });
  RunFolder folder(world, folder_of(config, options), options.resume, options.overwrite);
  world.move_dumps(folder.dump());
  world.enter_phase("start-up");
  together(world, [&] {
    if (world.rank() == 0) {
      log.tee(folder.log());
      RunFolder::write_file(folder.config(), resolved);
    }
    return 0;
  });
  if (config.regression.fault != "none") {
    log.print(fmt::format("FAULT ON: {} (regression.fault): this run is wrong on purpose", config.regression.fault));
  }
  if (!folder.note().empty()) log.print(folder.note());
  StopRequests stop(world, folder.stop(), config.train.max_minutes);

  Mesh mesh(world, mesh_shape(config, world.size()));
  auto plan = make_plan(config, world.size());
  if (!tap) tap = start_recording(world, config);
  auto [model, context] = shard_and_initialise(config, mesh);
  std::optional<Balance> balance;
  if (model.moe) {
    model.moe->pass().tap = tap.get();
    balance.emplace(*model.moe, world, mesh.axis(Axis::World), mesh.axis(Axis::DpShard));
  }

  Batches batches(*corpus, config, world);
  auto metrics = together(world, [&] {
    return std::make_unique<Metrics>(world, log, config, folder.metrics(), corpus->is_bytes(),
                                     flops_per_token(config, plan.active_parameters));
  });
  StartupFacts facts{plan, corpus->describe(), resolved, model_hash(*context), world.ledger()};
  log.print(startup_text(world, facts));
  metrics->header(startup_json(world, facts));

  Trainer trainer(config, *model.lm, *context, batches, *metrics, stop, balance ? &*balance : nullptr, tap.get());
  auto outcome = train_to_the_end(trainer, *metrics, options.progress);
  if (outcome.exit_code == kExitDone) log.print(fmt::format("done: results lie in {}", folder.path().string()));
  return outcome;
}

}  // namespace meshard
