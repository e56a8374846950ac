#include "train/run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/cores.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "base/whole_file.h"
#include "comm/world/together.h"
#include "config/run_path.h"
#include "dcp/file_system.h"
#include "nn/device/numerics.h"
#include "plan/plan.h"
#include "plan/sharding.h"
#include "sharding/audit.h"
#include "sharding/model_hash.h"
#include "train/evaluate.h"
#include "train/initialise.h"
#include "train/options.h"
#include "train/resume.h"
#include "plan/compute_time.h"
#include "train/routing_tap.h"
#include "train/sharded_model.h"
#include "train/startup.h"

namespace meshard {

namespace {

// Before the folder, as --overwrite removes what is in it, and before the model has memory.
void check_sources(const RunOptions& options, const std::filesystem::path& run_folder, const Config& config,
                   const DataRecord& data) {
  namespace fs = std::filesystem;
  if (RunFolder::has_checkpoint_of_this_job(run_folder)) return;  // which is what this start goes on from
  auto check = [&](const char* option, const std::optional<fs::path>& source, bool weights_only) {
    if (!source) return;
    bool holds = fs::exists(*source / ".metadata") || fs::exists(*source / "checkpoints") ||
                 (weights_only && fs::exists(*source / "config.json"));
    if (!holds) {
      throw ConfigError(fmt::format("{} {}: there is no checkpoint; expected its folder, a run's folder{}", option,
                                    source->string(), weights_only ? " or a Hugging Face folder" : ", auto or none"));
    }
    auto inside = fs::weakly_canonical(*source).lexically_relative(fs::weakly_canonical(run_folder));
    if (options.overwrite && !inside.empty() && *inside.begin() != "..") {
      throw ConfigError(fmt::format("{} {} lies in the run folder that --overwrite empties; choose another --run-dir",
                                    option, source->string()));
    }
  };
  check("--resume", options.resume_from, false);
  check("--init-from", options.init_from, true);
  auto& source = options.resume_from ? options.resume_from : options.init_from;
  auto* compared = options.resume_from ? &data : nullptr;
  if (source && options.resume != Resume::Auto) require_fit(posix_file_system(), *source, config, compared);
}

bool begins_with_its_own(const RunOptions& options, const RunFolder& folder) {
  return folder.goes_on() || (options.resume == Resume::Auto && !options.resume_from);
}

// Other sources only where no checkpoint of the run's own goes before them.
void check_own_checkpoints(const RunOptions& options, const RunFolder& folder, const Config& config) {
  auto& files = posix_file_system();
  if (!begins_with_its_own(options, folder) || require_newest_fit(files, folder.checkpoints(), config)) return;
  auto& source = options.resume_from ? options.resume_from : options.init_from;
  if (source) require_fit(files, *source, config);
}

std::optional<LoadedCheckpoint> load_what_is_asked_for(World& world, const RunOptions& options, const RunFolder& folder,
                                                       const SavedParts& parts, Log& log) {
  auto& files = posix_file_system();
  std::optional<LoadedCheckpoint> loaded;
  if (begins_with_its_own(options, folder)) {
    loaded = resume_newest(world, files, folder.checkpoints(), parts);
  }
  if (!loaded && options.resume_from) loaded = resume_from(world, files, *options.resume_from, parts);
  bool resumes = loaded.has_value();
  if (!loaded && options.init_from) loaded = load_weights(world, files, *options.init_from, parts);
  if (!loaded) return {};
  log.print(resumes ? fmt::format("resuming after step {} from {}", loaded->progress.step, loaded->folder.string())
                    : fmt::format("weights from {}", loaded->folder.string()));
  if (!loaded->notes.empty()) log.print(loaded->notes);
  return loaded;
}

// What an earlier start of this batch job was told is not done again.
std::string again_text(const RunOptions& options, const RunFolder& folder) {
  auto told = options.overwrite ? "--overwrite" : fmt::format("--resume {}", options.resume_from->string());
  return fmt::format(
      "{} was made by this batch job ({}), by an earlier start or command: {} was meant for that one, "
      "and this one goes on with what is there; to start anew, remove the folder, or name another with "
      "--run-dir",
      folder.path().string(), printable(batch_job_of_environment().id), told);
}

// Weights for the model: loaded or first ones, audited. Returns how far the run has come.
Progress begin_run(World& world, const RunOptions& options, RunFolder& folder, const SavedParts& parts,
                   Checkpoints& checkpoints, Log& log) {
  auto loaded = load_what_is_asked_for(world, options, folder, parts, log);
  if (!loaded && parts.config.init.device == InitConfig::Device::Meta) {
    initialise_sharded(parts.runtime, parts.config.run.seed);
  }
  if (parts.config.regression.guards) loaded ? audit_load(parts.runtime) : audit_initialisation(parts.runtime);
  auto progress = loaded ? loaded->progress : Progress{};
  bool own = loaded && loaded->folder.parent_path() == folder.checkpoints();
  checkpoints.began_from(own ? progress.step : 0);
  auto cut = together(world, [&] { return world.rank() == 0 ? folder.cut_metrics_after(progress.step) : 0; });
  if (folder.used() && !loaded) {
    log.print(fmt::format("{} holds no checkpoint: starting at step 1", folder.path().string()));
  }
  if (cut > 0) log.print(fmt::format("{} lines of later steps left metrics.jsonl: they will be done again", cut));
  return progress;
}

// What is read before the run's folder is touched: what cannot train must not cost an earlier run its results.
struct Inputs {
  std::unique_ptr<Corpus> corpus;
  std::unique_ptr<RoutingTap> tap;  // null: no routing is replayed
  DataRecord data;                  // rank 0's
};

Inputs open_inputs(World& world, const Config& config, const RunOptions& options) {
  Inputs inputs;
  inputs.corpus = together(world, [&] { return open_corpus(corpus_options(config)); });
  inputs.tap = together(world, [&] { return open_replay(config); });
  if (config.train.eval_interval > 0) {
    check_held_out(*inputs.corpus, config, ", or ask for no evaluation with train.eval_interval: 0");
  }
  on_rank_0(world, [&] {
    inputs.data = data_record(*inputs.corpus);
    check_sources(options, run_path(config.run), config, inputs.data);
  });
  return inputs;
}

void say_what_is_special(const Config& config, const RunOptions& options, const RunFolder& folder, Log& log) {
  auto& regression = config.regression;
  if (regression.fault != "none") {
    log.print(fmt::format("FAULT ON: {} (regression.fault): this run is wrong on purpose", regression.fault));
  }
  if (!regression.guards) {
    log.print("guards are OFF (regression.guards): a value that is not finite, or replicas that part, stop nothing");
  }
  if (folder.goes_on()) log.print(again_text(options, folder));
  if (auto& file = regression.replay_routing) log.print(fmt::format("routing is replayed from {}", *file));
}

std::optional<Balance> balance_of(const Model& model, World& world, const Mesh& mesh, RoutingTap* tap) {
  if (!model.moe) return {};
  model.moe->pass().tap = tap;
  return std::optional<Balance>(std::in_place, *model.moe, world, mesh.axis(Axis::World), mesh.axis(Axis::DpShard));
}

}  // namespace

Outcome run_training(World& world, const Config& config, const RunOptions& options, Log& log) {
  auto resolved = resolved_yaml(config);
  check_same_config(world, resolved);
  at::set_num_threads(config.run.threads > 0 ? config.run.threads : cores_per_rank(world.place().local_size));
  set_device_numerics(world.device(), config.run.deterministic);
  world.set_timeout(std::chrono::seconds(config.comm.timeout_s));
  auto [corpus, tap, data] = open_inputs(world, config, options);

  RunFolder folder(world, run_path(config.run), options.resume_from ? Resume::From : options.resume, options.overwrite);
  world.move_dumps(folder.dump());
  world.enter_phase("start-up");
  on_rank_0(world, [&] { log.tee(folder.log()); });
  say_what_is_special(config, options, folder, log);
  StopRequests stop(world, folder.stop(), config.train.max_minutes);
  on_rank_0(world, [&] { check_own_checkpoints(options, folder, config); });

  Mesh mesh(world, mesh_shape(config, world.size()));
  auto plan = make_plan(config, world.size());
  if (!tap) tap = start_recording(world, config);
  auto [model, runtime] = shard_model(config, mesh);
  auto optimizer = make_optimizer(config);
  SavedParts saved{config, *runtime, *optimizer, &data};
  Checkpoints checkpoints(world, log, posix_file_system(), folder.checkpoints(), saved);
  auto progress = begin_run(world, options, folder, saved, checkpoints, log);
  on_rank_0(world, [&] { write_whole_file(folder.config(), resolved); });  // not before a refused resume
  auto balance = balance_of(model, world, mesh, tap.get());

  Batches batches(*corpus, config, mesh);
  auto flops = flops_per_token(config, plan.active_parameters);
  auto metrics = together(world, [&] {
    return std::make_unique<Metrics>(world, log, config, folder.metrics(), corpus->is_bytes(), flops);
  });
  StartupFacts facts{plan, corpus->describe(), resolved, model_hash(*runtime), world.ledger(), progress.step};
  log.print(startup_text(world, facts));
  metrics->header(startup_json(world, facts));

  Trainer trainer(
      config,
      {*model.lm, *runtime, *optimizer, batches, *metrics, stop, checkpoints, balance ? &*balance : nullptr, tap.get()},
      progress);
  auto outcome = trainer.run(options.progress);
  if (outcome.exit_code == kExitDone) {
    log.print(fmt::format("{}: results lie in {}", outcome.reason, folder.path().string()));
  }
  return outcome;
}

}  // namespace meshard
