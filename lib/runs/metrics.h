#pragma once
// A run folder's metrics.jsonl as data. train/CONTRACT.md section 5.

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

struct RunMetrics {
  using Json = nlohmann::ordered_json;  ///< keys in the order of the file

  std::filesystem::path folder;
  std::vector<Json> headers;           ///< one per start
  std::map<std::int64_t, Json> steps;  ///< by step; a step that stands twice (a resume): the later line
  std::map<std::int64_t, Json> evals;  ///< evaluations, by step
  std::optional<Json> end;             ///< the last orderly end
  bool torn = false;                   ///< the last line was cut off: a run that was killed, or still writes

  /// Local. The fault that the run was given (the header's `fault`), or empty.
  std::string fault() const;
};

/// Local. Reads RUN/metrics.jsonl. A last line that is cut off is left out. Throws IoError naming file and line: no
/// such folder or file, a line in the middle that is none of a run's (no JSON object, no step), no line of a step at
/// all.
RunMetrics read_run(const std::filesystem::path& folder);

/// Local. What a header says of its mesh: "4 ranks = dp_outer 2 x dp_shard 2, expert 1, hsdp". Empty: nothing.
std::string mesh_of_header(const RunMetrics::Json& header);

}  // namespace meshard
