#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/log.h"
#include "checkpoint/describe.h"

namespace meshard {

namespace {

struct InspectArguments {
  std::string checkpoint, keys;
  bool json = false, verify = false;
};

int inspect(const InspectArguments& arguments) {
  std::vector<std::string> problems;
  try {
    CheckpointReader reader(posix_file_system(), arguments.checkpoint);
    if (arguments.verify) problems = reader.verify();
    Log::output(arguments.json ? json_text(describe_json(reader, arguments.keys), 1) + "\n"
                               : describe_text(reader, arguments.keys));
  } catch (const IoError& error) {
    if (!arguments.verify) throw;
    problems.push_back(error.what());
  }
  for (auto& problem : problems) Log::error(problem);
  if (arguments.verify && !arguments.json && problems.empty())
    Log::output("verified: every tensor is whole, every checksum right\n");
  return problems.empty() ? kExitDone : kExitDifferent;
}

}  // namespace

void add_inspect(CLI::App& app, Command& run) {
  auto arguments = std::make_shared<InspectArguments>();
  auto* command = app.add_subcommand("inspect", "What a checkpoint holds, of Meshard or of PyTorch. No MPI.");
  command->add_option("checkpoint", arguments->checkpoint, "Its folder")->required()->type_name("CHECKPOINT");
  command->add_flag("--json", arguments->json, "One JSON object, with every chunk and the config");
  command->add_flag("--verify", arguments->verify, "Read all data: tiling, lengths, checksums. Exit 3: damaged");
  command->add_option("--keys", arguments->keys, "Only keys of this shell pattern: 'model.*norm*'")->type_name("GLOB");
  command->footer(
      "Examples:\n  meshard inspect runs/quickstart/checkpoints/step-00000400\n"
      "  meshard inspect CHECKPOINT --verify --keys 'optimizer.*'");
  command->callback([arguments, &run] { run = [arguments] { return inspect(*arguments); }; });
}

}  // namespace meshard
