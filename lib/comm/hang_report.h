#pragma once
// Who is to blame for a hang, from the rings of all ranks. Pure: no files, no clock, no MPI.

#include <optional>
#include <string>
#include <vector>

#include "comm/flight_recorder.h"

namespace meshard {

struct HangEvidence {
  double now = 0.0;              ///< wall clock, seconds
  double timeout_seconds = 0.0;  ///< what the waiting rank had for patience
  int reporter = 0;              ///< the rank that reports
  std::string folder;            ///< where the rings were looked for
  /// By rank; nothing where the ring could not be read.
  std::vector<std::optional<FlightSnapshot>> rings;
  /// By rank: the heartbeat did not move between two readings, so the process is stopped, dead or starved.
  std::vector<bool> silent;
};

/// Local. The summary. Its first line names the culprit and the collective it did not enter (or did not finish):
///   1. a silent rank, the one with the lowest sequence number if there are several;
///   2. else the rank with the lowest sequence number, if not all have the same: all ranks issue the same sequence of
///      collectives, so it is the one that the others wait for;
///   3. else a rank that is inside no wait: it computes, or hangs, elsewhere;
///   4. else nobody: all ranks are inside the same collective.
/// Then one line a rank, and how many rings could not be read.
std::string hang_report(const HangEvidence& evidence);

}  // namespace meshard
