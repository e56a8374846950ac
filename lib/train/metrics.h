#pragma once
// What a step leaves behind: numbers gathered over the ranks, metrics.jsonl, and the line on standard output.
// CONTRACT.md section 5.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json_lines.h"
#include "base/log.h"
#include "config/config.h"
#include "mesh/mesh.h"
#include "moe/balance.h"

namespace meshard {

/// What the trainer knows of one step. Seconds are this rank's.
struct StepRecord {
  std::int64_t step = 0;    ///< steps done, this one included
  std::int64_t tokens = 0;  ///< consumed so far
  double loss = 0.0;         ///< mean over the tokens of the global batch
  double grad_norm = 0.0;
  std::vector<std::pair<std::string, double>> unit_norms;  ///< logged with logging.per_layer
  double lr = 0.0;
  double seconds = 0.0;
  double data_seconds = 0.0;
  double stall_seconds = 0.0;  ///< waited for checkpoints since the step before
  std::vector<std::string> nonfinite;
  std::int64_t skipped_in_a_row = 0;   ///< steps up to this one whose update was left out because of these
  std::optional<StepBalance> balance;  ///< with experts
};

/// Minimum, median and maximum over the ranks.
struct Spread {
  double min = 0.0, median = 0.0, max = 0.0;
};

class Metrics {
 public:
  /// Local. Rank 0 opens the file; other ranks only take part in gathering. `flops_per_token`: forward and backward.
  Metrics(World& world, Log& log, const Config& config, const std::filesystem::path& file, bool byte_data,
          double flops_per_token);

  /// Collective over world; rank 0 writes. The line that opens each start.
  void header(const nlohmann::ordered_json& header);
  /// Collective over world. One logged step: gathers times and memory over the ranks, writes the line, prints it.
  /// `traffic` is this rank's ledger of the step. Throws IoError on every rank if the line could not be written.
  void step(const StepRecord& record, const Ledger& traffic, bool progress);
  /// Collective over world. One evaluation, at `step` steps done.
  void evaluation(std::int64_t step, double loss);
  /// Collective over world; rank 0 writes. The orderly end.
  void end(int exit_code, std::int64_t step, const std::string& reason);

 private:
  void append(const nlohmann::ordered_json& line);
  void append_together(const nlohmann::ordered_json& line);
  nlohmann::ordered_json balance_json(const StepBalance& balance) const;
  std::string step_line(const StepRecord& record, double step_ms, double tokens_per_s) const;

  World& world_;
  Log& log_;
  const Config& config_;
  std::optional<JsonLines> file_;
  bool byte_data_;
  double flops_per_token_;
  double seconds_per_step_ = 0.0;  ///< smoothed, for the ETA
};

/// Collective over world (control). Spread over the ranks of each of `values`, of which every rank gives as many.
std::vector<Spread> spreads_over_ranks(World& world, const std::vector<double>& values);

/// Local. Peak resident memory of this process, bytes.
std::int64_t peak_memory_bytes();

/// Local. {"all_gather": {"dp_shard": {"count": 1, "bytes": 1}}}
nlohmann::ordered_json traffic_json(const Ledger& ledger);

}  // namespace meshard
