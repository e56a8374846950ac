#pragma once

namespace meshard {

/// Exit codes of the `meshard` binary (README.md ("Stop, fail, watch"); a batch script maps them).
enum ExitCode : int {
  kExitDone = 0,
  kExitUsage = 2,      ///< usage or configuration, before anything started
  kExitDifferent = 3,  ///< a comparison found a difference
  kExitFailure = 70,   ///< run-time failure
  kExitRequeue = 75,   ///< stopped on request after a complete checkpoint
  kExitHang = 76,      ///< the watchdog found a hang
};

}  // namespace meshard
