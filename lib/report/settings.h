#pragma once
// The config of a run as plain keys and values, whatever its version.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "report/report.h"

namespace meshard {

struct LooseConfig {
  Settings settings;    ///< "train.steps", "400", in the order of the file
  std::string problem;  ///< why it could not be read; empty: it could
  /// Local. Nothing if the key is not there or no whole number.
  std::optional<std::int64_t> number(const std::string& key) const;
};

/// Local. Reads a config.yaml loosely: keys and values of any version. Never throws; a missing file is a problem.
LooseConfig read_config(const std::filesystem::path& file);

/// Local. A sweep's settings first, each with the value that the run's config has, if it has one; then the config's
/// others. Numbers are written alike, so that 1.0e-05 and 1e-05 do not differ.
Settings merged_settings(const Settings& sweep, const Settings& config);

/// Local. Keys of which two runs have different values; names and places of runs are none.
std::vector<std::string> differing_keys(const std::vector<RunReport>& runs);

/// Local. What the columns of these keys are called: of each the shortest ending, cut at a dot, that no other of them
/// ends in and that is no title of a result (`train.steps` beside the steps that a run has done). A key that is the end
/// of another one keeps its whole name.
std::vector<std::string> setting_titles(const std::vector<std::string>& keys);

/// Local. Empty if there is none.
std::string setting_value(const Settings& settings, const std::string& key);

}  // namespace meshard
