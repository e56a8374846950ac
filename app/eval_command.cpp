#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "app/commands.h"
#include "app/on_every_rank.h"
#include "train/evaluate.h"
#include "train/options.h"
#include "train/resume.h"
#include "train/stop.h"

namespace meshard {

namespace {

struct EvalArguments {
  std::string checkpoint, config;
  std::vector<std::string> overrides;
};

int eval(const EvalArguments& arguments) {
  catch_stop_signals();
  WorldOptions options;
  options.backend = Backend::Mpi;
  return on_every_rank(options, [&](World& world) -> int {
    auto overrides = kAnyMesh;  // evaluation shards over all ranks, whatever the config says
    overrides.insert(overrides.end(), arguments.overrides.begin(), arguments.overrides.end());
    auto config = arguments.config.empty()
                      ? config_of(CheckpointReader(posix_file_system(), arguments.checkpoint), arguments.overrides)
                      : load_config(arguments.config, overrides, world.size());
    world.choose_backend(world_options(config));
    Log log(world.rank() == 0);
    auto result = evaluate_checkpoint(world, config, arguments.checkpoint, log);
    log.print(fmt::format("eval loss {:.6f}{} over {} tokens", result.loss,
                          result.byte_data ? fmt::format(" | bpb {:.4f}", result.loss / std::log(2.0)) : "",
                          result.tokens));
    return kExitDone;
  });
}

}  // namespace

void add_eval(CLI::App& app, Command& run) {
  auto arguments = std::make_shared<EvalArguments>();
  auto* command = app.add_subcommand("eval", "Held-out loss of a checkpoint, on any number of ranks.");
  command->add_option("checkpoint", arguments->checkpoint, "Its folder")->required()->type_name("CHECKPOINT");
  command->add_option("--config", arguments->config, "YAML file; default: the config that the checkpoint was made with")
      ->type_name("FILE");
  command->add_option("--set", arguments->overrides, "Override a key: --set train.eval_batches=32")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->footer("Example:\n  mpirun -n 2 meshard eval runs/quickstart/checkpoints/step-00000400");
  command->callback([arguments, &run] { run = [arguments] { return eval(*arguments); }; });
}

}  // namespace meshard
