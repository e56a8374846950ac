#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/on_every_rank.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/whole_file.h"
#include "comm/world/together.h"
#include "mesh/preflight.h"
#include "plan/measure.h"
#include "plan/sharding.h"
#include "train/options.h"

namespace meshard {

namespace {

struct PreflightArguments {
  std::string config, hardware;
  std::vector<std::string> overrides;
  PreflightOptions options;
  bool json = false;
};

void write_hardware(const Mesh& mesh, const PreflightReport& report, const std::string& file) {
  auto hardware = measure_hardware(mesh, report);
  auto remark = fmt::format(
      "Measured by meshard preflight on {} ranks, {} of them on a node, {} threads each.\n"
      "For meshard plan --timeline --hardware FILE.",
      report.shape.ranks(), hardware.ranks_per_node, report.ranks.front().threads);
  on_rank_0(mesh.world(), [&] { write_whole_file(file, hardware_yaml(hardware, remark)); });
}

int run_preflight(const PreflightArguments& arguments) {
  WorldOptions start;
  start.backend = Backend::Mpi;  // until the config, which needs the number of ranks, has its say
  return on_every_rank(start, [&](World& world) -> int {
    auto options = arguments.options;
    auto shape = MeshShape(world.size(), 1, world.size());
    start.backend = Backend::Auto;
    if (!arguments.config.empty()) {
      auto config = load_config(arguments.config, arguments.overrides, world.size());
      check_same_config(world, resolved_yaml(config));
      shape = mesh_shape(config, world.size());
      options.threads = config.run.threads;
      start = world_options(config);
    }
    world.choose_backend(start);
    world.set_timeout(start.timeout);
    if (!arguments.hardware.empty()) shape = mesh_of_nodes(world);
    Mesh mesh(world, shape);
    auto report = preflight(mesh, options);
    if (!arguments.hardware.empty()) write_hardware(mesh, report, arguments.hardware);
    Log(world.rank() == 0).print(arguments.json ? json_text(preflight_json(report), 1) : preflight_text(report));
    return kExitDone;
  });
}

}  // namespace

void add_preflight(CLI::App& app, Command& run) {
  auto arguments = std::make_shared<PreflightArguments>();
  auto& options = arguments->options;
  auto* command =
      app.add_subcommand("preflight",
                         "Where the ranks are, whether that fits the mesh, and how fast nodes and axes are. "
                         "Exit 0 also with warnings.");
  auto* config = command
                     ->add_option("--config", arguments->config,
                                  "YAML file whose mesh to look at; default: one "
                                  "dp_shard axis of all ranks")
                     ->type_name("FILE");
  command->add_option("--set", arguments->overrides, "Override a key: --set parallel.dp_outer=2")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->needs(config);
  command->add_option("--sizes", options.sizes, "Bytes per rank: --sizes 4K,1M,64M")
      ->type_name("BYTES,...")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::int64_t{4}, std::int64_t{1} << 30));
  command->add_option("--seconds", options.seconds, "Time for the bandwidths, together")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 600.0));
  command
      ->add_option("--write-hardware", arguments->hardware,
                   "Also write what `plan --hardware` reads; measures nodes x ranks of a node, not the config's mesh")
      ->type_name("FILE");
  command->add_flag("--json", arguments->json, "One JSON object instead of tables");
  command->footer(
      "Examples:\n  mpirun -n 8 meshard preflight\n"
      "  mpirun -n 8 meshard preflight --config run.yaml --sizes 1M,16M --json\n"
      "  mpirun -n 16 meshard preflight --write-hardware cluster.yaml");
  command->callback([arguments, &run] {
    auto& sizes = arguments->options.sizes;
    for (auto& size : sizes) size = (size + 3) / 4 * 4;  // whole fp32 values
    std::ranges::sort(sizes);
    sizes.erase(std::ranges::unique(sizes).begin(), sizes.end());
    run = [arguments] { return run_preflight(*arguments); };
  });
}

}  // namespace meshard
