#pragma once
// Which runs the arguments of a report mean.

#include <filesystem>
#include <vector>

#include "report/report.h"

namespace meshard {

struct RunSource {
  std::filesystem::path folder;  ///< of a sweep's point: it need not be there
  std::string name;              ///< unique: the folder's, longer where two would be alike
  Settings settings;             ///< of a sweep's point
  bool named = false;            ///< an argument of its own
};

/// Local. Runs (metrics.jsonl or config.yaml), sweeps (sweep.json, points.txt), folders of either; each run once, in
/// the order given, folders by name. Throws ConfigError naming the argument that is none of them, or has none.
std::vector<RunSource> find_runs(const std::vector<std::filesystem::path>& arguments);

}  // namespace meshard
