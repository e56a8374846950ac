#pragma once
// A thread that ends the process with exit code 76 when this rank has waited in one collective for longer than the
// timeout, after it has written who is to blame. It calls no MPI, takes no lock that the training thread holds while it
// communicates, and counts only time in which the process ran: a job that was suspended as a whole is no hang.
// DESIGN.md section 8.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/hang_report.h"
#include "comm/recorder.h"

namespace meshard {

struct WatchdogOptions {
  int rank = 0;
  int size = 1;
  std::uint64_t launch = 0;
  bool several_hosts = false;  ///< rings are flushed to the file system once a round
  std::chrono::milliseconds timeout{600'000};
};

class Watchdog {
 public:
  /// A further look at this rank that the watchdog takes each round (nccl: the device, errors of communicators):
  /// returns the sequence number of the oldest collective that the device has not finished, or 0.
  using Probe = std::function<std::uint64_t()>;

  /// Local. Starts the thread. `recorder` must live longer.
  Watchdog(Recorder& recorder, const WatchdogOptions& options);
  /// Local. Ends the thread.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void set_timeout(std::chrono::milliseconds timeout);
  void set_probe(Probe probe);

 private:
  void run();
  bool overdue(std::chrono::milliseconds elapsed);
  HangEvidence collect();
  [[noreturn]] void report_and_exit();

  Recorder& recorder_;
  WatchdogOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  Probe probe_;
  std::uint64_t watched_ = 0;  ///< the collective whose wait is timed
  std::chrono::milliseconds waited_{0};
  std::thread thread_;
};

}  // namespace meshard
