#pragma once
// How a run stands, read from its folder: the last header and end lines of metrics.jsonl, and its lock.
// train/CONTRACT.md section 5.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace meshard {

enum class RunPhase {
  Missing,    ///< no metrics.jsonl: it never started
  Running,    ///< no end line after the last header, and the owner of the lock may be alive
  Done,       ///< ended with exit 0
  Preempted,  ///< ended with exit 75, after a checkpoint
  Failed,     ///< ended with another exit code
  Died,       ///< no end line, and nobody holds the lock: killed
};

struct RunState {
  RunPhase phase = RunPhase::Missing;
  std::optional<int> exit;  ///< of the last orderly end
  std::string reason;       ///< of the last orderly end
  std::int64_t step = 0;    ///< last step with a line
  int starts = 0;           ///< header lines; one more than it was requeued
};

/// "missing", "running", "done", "preempted", "failed", "died".
std::string to_string(RunPhase phase);

/// Local. Cheap: reads the file once and parses only the lines it needs. A torn last line counts as not written, an
/// object without a name that is known here as a later version's. A folder that is not there is Missing. Throws IoError
/// if the file cannot be read, or is none of a run's.
RunState run_state(const std::filesystem::path& folder);

}  // namespace meshard
