#pragma once
// Where a run's folder is: run.dir / run.name. The recorded config names the folder that was used, so that it leads
// back there.

#include <filesystem>

#include "config/config.h"

namespace meshard {

/// Local. The folder of a run with this config, relative to the working directory if run.dir is.
std::filesystem::path run_path(const RunConfig& run);

/// Local. Sets run.dir and run.name such that `run_path` is `folder`. Throws ConfigError for a folder without a name:
/// an empty one, and the root.
void set_run_path(RunConfig& run, const std::filesystem::path& folder);

}  // namespace meshard
