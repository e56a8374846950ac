#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "app/commands.h"
#include "base/error.h"
#include "runs/compare.h"

namespace meshard {

namespace {

struct CompareArguments {
  std::string run_a, run_b;
  CompareOptions options;
};

int compare(const CompareArguments& arguments) {
  try {
    auto a = read_run(arguments.run_a), b = read_run(arguments.run_b);
    auto comparison = compare_runs(a, b, arguments.options);
    std::cout << comparison_text(a, b, comparison);
    return comparison.same() ? kExitDone : kExitDifferent;
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("{} or {} has a value of another type than a run writes: {}", arguments.run_a,
                                  arguments.run_b, error.what()));
  } catch (const Error& error) {  // whatever cannot be compared was asked for wrongly
    throw ConfigError(error.what());
  }
}

}  // namespace

void add_compare(CLI::App& app, Command& run) {
  auto arguments = std::make_shared<CompareArguments>();
  auto& options = arguments->options;
  auto* command = app.add_subcommand(
      "compare", "Where two runs part: the first step, metric and layer. No MPI. Exit 0: same, 3: different.");
  command->add_option("run_a", arguments->run_a, "A run's folder")->required()->type_name("RUN_A");
  command->add_option("run_b", arguments->run_b, "Another run's folder")->required()->type_name("RUN_B");
  auto* exact = command->add_flag("--exact", options.exact, "Numbers must be equal to the last bit");
  command->add_option("--rtol", options.rtol, "Largest relative difference that counts as the same")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0))
      ->excludes(exact);
  command
      ->add_option("--metric", options.metrics,
                   "Look at this metric only (may be repeated): loss, moe, moe.bias_max, step_ms. "
                   "Default: all but what clock, machine and mesh change")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command->footer(
      "Examples:\n  meshard compare runs/one_rank runs/four_ranks\n"
      "  meshard compare runs/before runs/after --exact --metric loss --metric grad_norm");
  command->callback([arguments, &run] { run = [arguments] { return compare(*arguments); }; });
}

}  // namespace meshard
