#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/whole_file.h"
#include "config/config.h"
#include "plan/search.h"
#include "plan/timeline.h"
#include "plan/trace.h"

namespace meshard {

namespace {

struct PlanArguments {
  std::string config, hardware, trace;
  std::vector<std::string> overrides;
  int ranks = 1;
  int ranks_per_node = 0;
  double memory_limit_gb = 0.0;  ///< 0: the hardware's
  bool layout = false, json = false, timeline = false, search = false;
};

void say(const PlanArguments& arguments, const nlohmann::ordered_json& json, const std::string& text) {
  Log::output((arguments.json ? json_text(json, 1) : text) + "\n");
}

int search(const PlanArguments& arguments, const Hardware& hardware) {
  SearchOptions options{.ranks = arguments.ranks, .memory_limit_gb = hardware.memory_gb};
  if (arguments.memory_limit_gb > 0.0) options.memory_limit_gb = arguments.memory_limit_gb;
  auto overrides = neutral_overrides(arguments.overrides, options.free);
  auto result = search_meshes(load_config(arguments.config, overrides, arguments.ranks), options, hardware);
  say(arguments, {{"search", search_json(result, options, hardware)}}, search_text(result, options, hardware));
  return 0;
}

int plan(const PlanArguments& arguments) {
  auto hardware = arguments.hardware.empty() ? Hardware{} : load_hardware(arguments.hardware);
  if (arguments.search) return search(arguments, hardware);
  auto plan = make_plan(load_config(arguments.config, arguments.overrides, arguments.ranks), arguments.ranks);
  auto json = plan_json(plan, arguments.layout);
  auto text = plan_text(plan, arguments.layout, arguments.ranks_per_node);
  if (arguments.timeline || !arguments.trace.empty()) {
    auto step = predict_step(plan, hardware);
    json["timeline"] = timeline_json(step, plan, hardware);
    text = timeline_text(step, plan, hardware);
    if (!arguments.trace.empty()) write_whole_file(arguments.trace, json_text(trace_json(step, plan)) + "\n");
  }
  say(arguments, json, text);
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
  auto* timeline =
      command->add_flag("--timeline", arguments->timeline, "Predict one step instead: time, waits, memory");
  command->add_option("--trace", arguments->trace, "And write it as a trace that Perfetto opens")->type_name("FILE");
  auto* search = command->add_flag("--search", arguments->search, "The ten fastest meshes and strategies that fit");
  search->excludes(timeline);
  command->add_option("--memory-limit", arguments->memory_limit_gb, "GB a rank for --search; default: the hardware's")
      ->check(CLI::Range(1e-3, 1e6))
      ->needs(search);
  command
      ->add_option("--hardware", arguments->hardware,
                   "YAML file of what a rank and its links achieve (configs/hardware/); default: H100s by eight")
      ->type_name("FILE");
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  command->footer(
      "Examples:\n  meshard plan configs/llama3_70b.yaml --ranks 1024\n"
      "  meshard plan configs/quickstart.yaml --ranks 4 --layout --json\n"
      "  meshard plan configs/llama3_70b.yaml --ranks 512 --timeline --trace step.json\n"
      "  meshard plan configs/llama3_70b.yaml --ranks 512 --search --memory-limit 72");
  command->callback([arguments, &run] { run = [arguments] { return plan(*arguments); }; });
}

}  // namespace meshard
