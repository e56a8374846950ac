#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "base/json_text.h"
#include "base/log.h"
#include "config/config.h"
#include "plan/plan.h"

namespace meshard {

namespace {

struct PlanArguments {
  std::string config;
  std::vector<std::string> overrides;
  int ranks = 1;
  int ranks_per_node = 0;
  bool layout = false, json = false;
};

int plan(const PlanArguments& arguments) {
  auto config = load_config(arguments.config, arguments.overrides, arguments.ranks);
  auto plan = make_plan(config, arguments.ranks);
  Log::output((arguments.json ? json_text(plan_json(plan, arguments.layout), 1)
                              : plan_text(plan, arguments.layout, arguments.ranks_per_node)) +
              "\n");
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Command& run) {
  auto arguments = std::make_shared<PlanArguments>();
  auto* command =
      app.add_subcommand("plan", "What a config costs on N ranks: meshes, layouts, memory, traffic. No MPI.");
  command->add_option("config", arguments->config, "YAML file")->required();
  command->add_option("--ranks", arguments->ranks, "Number of ranks")->required()->check(CLI::Range(1, 1 << 24));
  command->add_option("--ranks-per-node", arguments->ranks_per_node, "Also say over how many nodes each axis runs")
      ->check(CLI::Range(1, 1 << 16));
  command->add_option("--set", arguments->overrides, "Override a key: --set train.steps=10")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_flag("--layout", arguments->layout, "How much of every tensor each rank owns");
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  command->footer(
      "Examples:\n  meshard plan configs/llama3_70b.yaml --ranks 1024\n"
      "  meshard plan configs/quickstart.yaml --ranks 4 --layout --json");
  command->callback([arguments, &run] { run = [arguments] { return plan(*arguments); }; });
}

}  // namespace meshard
