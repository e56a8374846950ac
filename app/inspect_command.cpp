#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/log.h"
#include "checkpoint/describe.h"
#include "train/resume.h"

namespace meshard {

namespace {

struct InspectArguments {
  std::string checkpoint, keys;
  bool json = false, verify = false;
};

Verification verified(const CheckpointReader& reader) {
  auto found = reader.verify();
  auto problem = contradiction(reader);
  if (!problem.empty()) found.problems.push_back(problem);
  return found;
}

int inspect(const InspectArguments& arguments) {
  Verification found;
  try {
    CheckpointReader reader(posix_file_system(), arguments.checkpoint);
    if (arguments.verify) found = verified(reader);
    Log::output(arguments.json ? json_text(describe_json(reader, arguments.keys), 1) + "\n"
                               : describe_text(reader, arguments.keys));
  } catch (const IoError& error) {
    if (!arguments.verify) throw;
    found.problems.push_back(error.what());
  }
  for (auto& problem : found.problems) Log::error(problem);
  if (!found.sound()) return kExitDifferent;
  if (!arguments.verify) return kExitDone;
  arguments.json ? Log::error(found.checked_text()) : Log::output(found.checked_text() + "\n");
  return kExitDone;
}

}  // namespace

void add_inspect(CLI::App& app, Command& run) {
  auto arguments = std::make_shared<InspectArguments>();
  auto* command = app.add_subcommand("inspect", "What a checkpoint holds, of Meshard or of PyTorch. No MPI.");
  command->add_option("checkpoint", arguments->checkpoint, "Its folder")->required()->type_name("CHECKPOINT");
  command->add_flag("--json", arguments->json, "One JSON object, with every chunk and the config");
  command->add_flag("--verify", arguments->verify, "Read all data: checksums, shapes, dtypes, tiling. Exit 3: damaged");
  command->add_option("--keys", arguments->keys, "Only keys of this shell pattern: 'model.*norm*'")->type_name("GLOB");
  command->footer(
      "Examples:\n  meshard inspect runs/quickstart/checkpoints/step-00000400\n"
      "  meshard inspect CHECKPOINT --verify --keys 'optimizer.*'");
  command->callback([arguments, &run] { run = [arguments] { return inspect(*arguments); }; });
}

}  // namespace meshard
