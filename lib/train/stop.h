#pragma once
// Requests to stop, and the ranks' agreement on them. CONTRACT.md section 6.

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "comm/world/world.h"

namespace meshard {

/// Local. From now on SIGUSR1, SIGUSR2, SIGTERM and SIGINT only set a flag. Called first thing, so that a stop during
/// start-up is honoured too.
void catch_stop_signals();

/// Local. How long this process has been running, its start-up included; 0 where the system does not say.
double seconds_of_process();

class StopRequests {
 public:
  /// Local. `max_minutes` counts from now. `stop_file` is watched by rank 0.
  StopRequests(World& world, std::filesystem::path stop_file, std::optional<double> max_minutes);

  /// Local; rank 0's counts. From now on the time limit falls so much earlier: what one more step and a checkpoint
  /// take.
  void reserve(double seconds) { reserved_ = std::chrono::duration<double>(seconds); }

  /// Collective over world, until it has answered once. Why to stop, if any rank has a reason: the same text on every
  /// rank, and from then on always.
  std::optional<std::string> agreed();

 private:
  int own_reason() const;

  World& world_;
  std::filesystem::path stop_file_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::chrono::duration<double> reserved_{0.0};
  std::optional<std::string> agreed_;
};

}  // namespace meshard
