#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "app/commands.h"
#include "base/log.h"
#include "config/config.h"
#include "hf/export.h"
#include "train/evaluate.h"
#include "train/options.h"
#include "train/resume.h"

namespace meshard {

namespace {

struct ExportArguments {
  std::string checkpoint, out, config, dtype = "fp32";
};

int export_checkpoint(const ExportArguments& arguments) {
  auto& files = posix_file_system();
  CheckpointReader reader(files, arguments.checkpoint);
  reader.require_sound("exported");
  auto fault = fault_note(reader);
  if (!fault.empty()) Log::error("warning: " + fault);
  ExportOptions options;
  options.dtype = arguments.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  auto config = arguments.config.empty() ? config_of(reader) : load_config(arguments.config, kAnyMesh, 1);
  for (auto& warning : export_model(reader, model_options(config), files, arguments.out, options)) {
    Log::error("warning: " + warning);
  }
  Log::output(fmt::format("exported to {}\n", arguments.out));
  return 0;
}

}  // namespace

void add_export(CLI::App& app, Command& run) {
  auto arguments = std::make_shared<ExportArguments>();
  auto* command =
      app.add_subcommand("export", "A checkpoint as a Hugging Face folder: config.json and safetensors. No MPI.");
  command->add_option("checkpoint", arguments->checkpoint, "Its folder")->required()->type_name("CHECKPOINT");
  command->add_option("--out", arguments->out, "The new folder")->required()->type_name("DIR");
  command->add_option("--dtype", arguments->dtype, "Of the weights: fp32 or bf16")
      ->type_name("fp32|bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command->add_option("--config", arguments->config, "YAML file; default: the config that the checkpoint was made with")
      ->type_name("FILE");
  command->footer("Example:\n  meshard export runs/quickstart/checkpoints/step-00000400 --out model --dtype bf16");
  command->callback([arguments, &run] { run = [arguments] { return export_checkpoint(*arguments); }; });
}

}  // namespace meshard
