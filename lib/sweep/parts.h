#pragma once
// The parts of a sweep's file, row by row.

#include <map>
#include <string>
#include <vector>

#include "config/yaml_tree.h"
#include "sweep/sweep.h"

namespace meshard {

using SweepRow = std::vector<SweepSetting>;
using SweepRows = std::vector<SweepRow>;

constexpr std::size_t kMostSweepPoints = 10000;

/// Local. A YAML value as JSON: plain numbers, `true`, `false` and null as such, any other scalar as text.
nlohmann::json yaml_json(const YamlNode& node);

/// Reads parts; every problem goes into the report. Rows are complete only if there was none.
class SweepParts {
 public:
  explicit SweepParts(Report& report) : report_(report) {}

  /// Local. Every combination of the columns.
  SweepRows grid(const YamlNode& part);
  /// Local. The columns side by side.
  SweepRows zip(const YamlNode& part);
  /// Local. The entries as they stand.
  SweepRows list(const YamlNode& part);
  /// Local. One row per seed.
  SweepRows seeds(const YamlNode& part);

 private:
  const std::vector<YamlNode>& items(const YamlNode& node, const std::string& path, const std::string& expected);
  std::vector<SweepRow> columns(const YamlNode& part);
  void claim(const std::string& key, const std::string& part, const Place& place);
  void add_value(const std::string& key, const YamlNode& node, SweepRow& row);
  void refuse_repeated_values(const SweepRow& column);
  void refuse_repeated(const SweepRows& rows, const std::vector<Place>& places, const std::string& part);

  Report& report_;
  std::map<std::string, std::string> owners_;  ///< the part that each key stands in
};

}  // namespace meshard
