#include <memory>

#include "app/commands.h"
#include "app/on_every_rank.h"
#include "config/config.h"
#include "config/run_path.h"
#include "train/options.h"
#include "train/run.h"
#include "train/stop.h"

namespace meshard {

namespace {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::optional<std::filesystem::path> run_dir;
  std::optional<int> expect_ranks;
  std::string resume = "none";
  RunOptions options;
};

int train(const TrainArguments& arguments) {
  catch_stop_signals();
  WorldOptions options;
  options.backend = Backend::Mpi;  // until the config, which needs the number of ranks, has its say
  options.expect_ranks = arguments.expect_ranks;
  return on_every_rank(options, [&](World& world) -> int {
    auto config = load_config(arguments.config, arguments.overrides, world.size());
    if (arguments.run_dir) set_run_path(config.run, *arguments.run_dir);
    world.choose_backend(world_options(config));
    Log log(world.rank() == 0);
    auto outcome = run_training(world, config, arguments.options, log);
    if (outcome.exit_code != kExitDone && world.rank() == 0) Log::error(outcome.reason);
    return outcome.exit_code;
  });
}

}  // namespace

void add_train(CLI::App& app, Command& run) {
  auto arguments = std::make_shared<TrainArguments>();
  auto& options = arguments->options;
  auto* command = app.add_subcommand("train", "Trains a model. Start it under mpirun, or alone as one rank.");
  command->add_option("config", arguments->config, "YAML file")->required();
  command->add_option("--set", arguments->overrides, "Override a key: --set train.steps=10")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command
      ->add_option("--resume", arguments->resume,
                   "none (default): the run folder must be unused; auto: go on from its newest complete checkpoint, or "
                   "start; DIR: go on from that checkpoint, or another run's newest")
      ->type_name("auto|none|DIR");
  command
      ->add_option("--init-from", options.init_from,
                   "Take the first weights from a checkpoint; a checkpoint that --resume finds goes first")
      ->type_name("DIR");
  command->add_option("--run-dir", arguments->run_dir, "Run folder; default run.dir/run.name")->type_name("DIR");
  command->add_flag("--overwrite", options.overwrite, "Start anew in a used run folder");
  command->add_option("--expect-ranks", arguments->expect_ranks, "Refuse to run on another number of ranks")
      ->type_name("N");
  command->add_flag("--progress", options.progress, "One progress line instead of a line per logged step");
  command->footer(
      "Examples:\n  mpirun -n 4 meshard train configs/quickstart.yaml\n"
      "  mpirun -n 8 meshard train run.yaml --set parallel.strategy=hfsdp --run-dir runs/hfsdp");
  command->callback([arguments, &run] {
    auto& options = arguments->options;
    options.resume = arguments->resume == "auto" ? Resume::Auto : Resume::None;
    if (arguments->resume != "auto" && arguments->resume != "none") options.resume_from = arguments->resume;
    run = [arguments] { return train(*arguments); };
  });
}

}  // namespace meshard
