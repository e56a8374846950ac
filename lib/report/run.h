#pragma once
// One run of a report, from what lies in its folder.

#include "report/lines.h"
#include "report/report.h"
#include "report/settings.h"
#include "report/sources.h"

namespace meshard {

struct ReadRun {
  RunReport report;                        ///< without maps
  std::vector<std::int64_t> line_offsets;  ///< of the steps' lines in metrics.jsonl, for the maps
};

/// Local. `points`: of a curve, at most. `version`: this program's. Throws ConfigError if `source` was named as an
/// argument and its metrics have no line of a run.
ReadRun read_run_report(const RunSource& source, std::size_t points, const std::string& version);

/// Local. What is missing, odd or damaged in a run whose state, numbers and facts are known.
void add_remarks(RunReport& run, const RunLines& lines, const LooseConfig& config, const std::string& version);

}  // namespace meshard
