#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>

#include "app/commands.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/compare.h"
#include "checkpoint/store.h"
#include "runs/compare.h"

namespace meshard {

namespace {

struct CompareArguments {
  std::filesystem::path a, b;
  CompareOptions options;
  bool checkpoints = false;
};

bool is_checkpoint(const std::filesystem::path& folder) {
  return posix_file_system().exists(folder / ".metadata");
}

bool same_metrics(const CompareArguments& arguments) {
  try {
    auto a = read_run(arguments.a), b = read_run(arguments.b);
    auto comparison = compare_runs(a, b, arguments.options);
    Log::output(comparison_text(a, b, comparison));
    return comparison.same();
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("{} or {} has a value of another type than a run writes: {}", arguments.a.string(),
                                  arguments.b.string(), error.what()));
  } catch (const Error& error) {  // whatever cannot be compared was asked for wrongly
    throw ConfigError(error.what());
  }
}

/// Complete checkpoints of a run by step, or the one that `folder` is.
std::map<std::int64_t, std::filesystem::path> checkpoints_of(const std::filesystem::path& folder) {
  auto& files = posix_file_system();
  if (is_checkpoint(folder)) {
    CheckpointReader reader(files, folder);
    auto& facts = reader.extra();
    return {{facts.is_object() ? facts.value("step", std::int64_t{0}) : 0, folder}};
  }
  CheckpointStore store(files, folder / "checkpoints");
  std::map<std::int64_t, std::filesystem::path> found;
  for (auto step : store.complete()) found[step] = store.folder(step);
  if (found.empty()) {
    throw ConfigError(fmt::format("{} is no checkpoint, and has no complete one in {}", folder.string(),
                                  (folder / "checkpoints").string()));
  }
  return found;
}

std::string steps_text(const std::map<std::int64_t, std::filesystem::path>& checkpoints) {
  std::vector<std::int64_t> steps;
  for (auto& [step, _] : checkpoints) steps.push_back(step);
  return fmt::format("{}", fmt::join(steps, ", "));
}

/// Two checkpoints whatever their steps; of runs the steps that both have, in order.
std::vector<ComparedCheckpoints> pairs_of(const CompareArguments& arguments) {
  auto a = checkpoints_of(arguments.a), b = checkpoints_of(arguments.b);
  if (is_checkpoint(arguments.a) && is_checkpoint(arguments.b)) return {{arguments.a, arguments.b, "", {}}};
  std::vector<ComparedCheckpoints> pairs;
  for (auto& [step, folder] : a) {
    if (b.contains(step)) pairs.push_back({folder, b[step], "", {}});
  }
  if (!pairs.empty()) return pairs;
  throw ConfigError(
      fmt::format("no step has a checkpoint in both: {} has {}, {} has {}; name two checkpoints to compare "
                  "those of different steps",
                  arguments.a.string(), steps_text(a), arguments.b.string(), steps_text(b)));
}

bool same_checkpoints(const CompareArguments& arguments) {
  auto pairs = pairs_of(arguments);
  for (auto& pair : pairs) {
    CheckpointReader a(posix_file_system(), pair.a), b(posix_file_system(), pair.b);
    auto step_a = step_text(a), step_b = step_text(b);
    pair.step = step_a == step_b || step_b.empty() ? step_a : step_a.empty() ? step_b : step_a + " against " + step_b;
    pair.comparison = compare_checkpoints(a, b, {.rtol = arguments.options.rtol, .exact = arguments.options.exact});
  }
  Log::output(comparison_text(pairs));
  return std::ranges::all_of(pairs, [](auto& pair) { return pair.comparison.same(); });
}

int compare(const CompareArguments& arguments) {
  bool runs = !is_checkpoint(arguments.a) && !is_checkpoint(arguments.b);
  if (!runs && !arguments.checkpoints) {
    throw ConfigError(fmt::format("{} is a checkpoint: add --checkpoints to compare tensors",
                                  (is_checkpoint(arguments.a) ? arguments.a : arguments.b).string()));
  }
  if (!runs && !arguments.options.metrics.empty()) {
    throw ConfigError("--metric is about runs: a checkpoint has no metrics; name two runs' folders");
  }
  bool same = !runs || same_metrics(arguments);
  if (arguments.checkpoints) {
    if (runs) Log::output("\n");
    same = same_checkpoints(arguments) && same;
  }
  return same ? kExitDone : kExitDifferent;
}

}  // namespace

void add_compare(CLI::App& app, Command& run) {
  auto arguments = std::make_shared<CompareArguments>();
  auto& options = arguments->options;
  auto* command = app.add_subcommand(
      "compare",
      "Where two runs, or two checkpoints, part: the first step, metric or tensor, and layer. No MPI. Exit 0: same, 3: "
      "different, 70: a checkpoint is damaged.");
  command->add_option("run_a", arguments->a, "A run's folder; with --checkpoints also a checkpoint's")
      ->required()
      ->type_name("RUN_A");
  command->add_option("run_b", arguments->b, "Another one")->required()->type_name("RUN_B");
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
  command->add_flag("--checkpoints", arguments->checkpoints,
                    "Tensors too: of every step with a checkpoint in both runs, or of two checkpoints. --rtol is then "
                    "relative to an element or, if that is more, to the root mean square of its row");
  command->footer(
      "Examples:\n  meshard compare runs/one_rank runs/four_ranks\n"
      "  meshard compare runs/before runs/after --exact --metric loss --metric grad_norm\n"
      "  meshard compare runs/a/checkpoints/step-00000100 runs/b --checkpoints --rtol 1e-3");
  command->callback([arguments, &run] { run = [arguments] { return compare(*arguments); }; });
}

}  // namespace meshard
