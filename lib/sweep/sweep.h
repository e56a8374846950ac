#pragma once
// A sweep: one base config and the points around it, each of which changes some keys. train/CONTRACT.md section 8.
// Pure: no run is looked at, nothing is written.
//
//   schema: 1
//   base: configs/quickstart.yaml         # relative to the working directory, as all paths are
//   grid: {optimizer.lr: [1.0e-3, 3.0e-3], train.steps: [200, 400]}       # every combination
//   zip:  {model.hidden_size: [64, 128], model.intermediate_size: [304, 608]}   # first with first, second with second
//   list: [{}, {optimizer.type: sgd, optimizer.lr: 0.1}]                   # as they stand; {} is the base itself
//   seeds: [1, 2]                                                          # run.seed
//
// The points are every row of grid x every row of zip x every entry of list x every seed, in that order, the last
// fastest. A part that is absent counts as one empty row.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "config/report.h"

namespace meshard {

/// One key of the config at one of its values.
struct SweepSetting {
  std::string key;
  nlohmann::json value;  ///< as the config reads it: 1.0e-3 and 0.001 are the same
  std::string yaml;      ///< the same for `--set key=...`
  Place place;           ///< in the sweep's file
};

struct SweepPoint {
  std::string name;  ///< of its folder: "lr=0.001,seed=2"
  std::vector<SweepSetting> settings;

  /// Local. {key: value}; two points are the same if these are.
  nlohmann::json object() const;
};

struct Sweep {
  std::string file;             ///< as the user named it, for messages
  std::string base;             ///< the base config's path
  Place base_place;             ///< in the sweep's file
  nlohmann::ordered_json spec;  ///< base, grid, zip, list, seeds as they were read
  std::vector<SweepPoint> points;
};

/// Local. Reads a sweep strictly. Every key must be one of the config's and every value one that its key takes; what
/// follows from keys together is left to check_sweep(). Throws ConfigError with all problems at once, as load_config()
/// does: unknown and repeated keys, a key in two parts, lists of unequal length in zip, a row that stands twice,
/// nothing to sweep, or more than 10,000 points. The base is not opened.
Sweep load_sweep(const std::filesystem::path& file);

/// Local. The same from text; `name` stands for the file in messages.
Sweep parse_sweep(const std::string& text, const std::string& name);

/// Local. Gives those points a name that have none: their keys (the last part where no other key of the sweep ends in
/// it) and values, in characters that every file system takes, at most 80 of them, different from all names in `taken`
/// and from one another, also where upper and lower case are the same.
void name_points(std::vector<SweepPoint>& points, std::set<std::string> taken = {});

}  // namespace meshard
