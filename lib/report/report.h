#pragma once
// Runs and sweeps side by side: a table, a CSV file, one page. train/CONTRACT.md section 8.

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runs/state.h"

namespace meshard {

/// Config keys and their values as text.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// The numbers of one run, of all its lines. Nothing: no line has it. NaN: its last value was not finite.
struct RunNumbers {
  std::optional<double> final_loss;
  std::optional<double> best_eval_loss, final_eval_loss;
  std::int64_t best_eval_step = 0;
  std::optional<double> bits_per_byte;  ///< of the best evaluation; without evaluations of the last step
  std::optional<double> tokens_per_s;   ///< tokens of all steps / step_time_s
  std::optional<double> mem_peak_bytes;
  std::optional<double> step_time_s;  ///< all steps; those between two lines took as long as the second's
  /// Means over the lines; step_ms of the median rank.
  std::optional<double> step_ms, data_ms, comm_ms, comm_busy_ms, stall_ms;
  double dropped = 0.0;                                       ///< pairs of the logged steps
  std::int64_t nonfinite_lines = 0, first_nonfinite_step = 0;
};

/// What a run's last header and its config say.
struct RunFacts {
  std::string version;  ///< of meshard; empty: not said
  std::string mesh;     ///< "4 ranks = dp_outer 2 x dp_shard 2, expert 1, hsdp"
  std::string hosts;
  std::string fault;
  std::optional<double> parameters, active_parameters;
  std::int64_t steps = 0;  ///< train.steps; 0: not known
};

/// A curve thinned to some hundred points, each standing for the same number of lines. NaN: no finite value there.
struct ThinCurve {
  std::string name;
  std::vector<double> mean, low, high;  ///< low and high are empty where no point has two values
};

/// Levels 1 to 255 between `low` and `high`, row by row; 0: no token (load), no finite value (bias, max_vio).
struct HeatMap {
  double low = 0.0, high = 0.0;
  std::vector<std::uint8_t> levels;  ///< [rows, steps]
};

/// One layer with experts: rows are experts. Load: an expert's tokens / the mean of all. Empty without per_layer.
struct LayerMaps {
  std::int64_t layer = 0;
  HeatMap load, bias;
};

struct ExpertMaps {
  std::vector<std::int64_t> steps;  ///< a sample of the lines
  std::vector<LayerMaps> layers;
  HeatMap max_vio;  ///< rows are layers
};

struct RunReport {
  std::filesystem::path folder;
  std::string name;  ///< unique in the report
  Settings settings;
  RunState state;
  std::string state_name;  ///< as to_string(state.phase), or "unknown" where the metrics are damaged
  RunNumbers numbers;
  RunFacts facts;
  std::vector<std::string> remarks;  ///< what is missing, odd or damaged, each a clause
  std::vector<std::int64_t> steps, eval_steps;
  std::vector<ThinCurve> curves;  ///< over `steps`; only those that have a finite value
  ThinCurve eval_loss;            ///< over `eval_steps`
  ExpertMaps maps;
};

struct RunsReport {
  std::vector<RunReport>
      runs;  ///< by best held-out loss; those without one by final loss; failed and missing ones last
  std::vector<std::string> settings;  ///< keys in which they differ
  std::size_t runs_without_maps = 0;  ///< left out to keep the page small
};

/// Local. Reads runs, sweeps (sweep.json, points.txt) and folders of either, on all cores. `version` is this program's.
/// Throws ConfigError naming an argument that is none of them; what is wrong inside a run is a remark of that run.
RunsReport make_report(const std::vector<std::filesystem::path>& arguments, const std::string& version);

/// Local. One line a run, at most `width` characters: results (the least important ones go first), then those settings
/// that differ for which there is room. After it remarks, and the values of all settings that differ.
std::string report_table(const RunsReport& report, int width);

/// Local. RFC 4180 with a header line; numbers in full. The columns of results are the same in every file, in one
/// order; then one for each setting that differs, under its whole key.
std::string report_csv(const RunsReport& report);

/// Local. One self-contained page: no network, text of run folders only as JSON that cannot end its element. `made`
/// says when and of what.
std::string report_html(const RunsReport& report, const std::string& made);

}  // namespace meshard
