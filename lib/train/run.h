#pragma once
// A run from config to outcome: folder, mesh, model, weights, start-up table, training.

#include <filesystem>
#include <optional>
#include <string>

#include "base/log.h"
#include "comm/world/world.h"
#include "config/config.h"
#include "train/run_folder.h"
#include "train/trainer.h"

namespace meshard {

struct RunOptions {
  Resume resume = Resume::None;
  std::optional<std::filesystem::path> resume_from;  ///< a checkpoint, or another run's folder
  std::optional<std::filesystem::path> init_from;    ///< weights only: a checkpoint or a Hugging Face folder
  bool overwrite = false;
  bool progress = false;  ///< a progress line instead of one line per logged step
};

/// Local. Versions of Meshard and every library, and the backends built in; one a line.
std::string version_text();

/// Collective over world. Trains `config`, which is valid for this world and equal on all ranks. Errors are thrown on
/// every rank where all ranks can know them, else where they happen.
Outcome run_training(World& world, const Config& config, const RunOptions& options, Log& log);

}  // namespace meshard
