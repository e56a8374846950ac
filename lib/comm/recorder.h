#pragma once
// Where every collective of this rank is entered: in the ledgers (what it cost) and in the watchdog's ring (whether it
// came to an end). One per World, shared by its communicators. Used by one thread at a time; the watchdog's thread only
// reads the ring.

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/flight_recorder.h"
#include "comm/ledger.h"

namespace meshard {

/// The axis whose traffic is always control traffic.
inline constexpr std::string_view kControlAxis = "control";

class Recorder {
 public:
  /// Local. Opens the ring of this rank. Throws IoError.
  Recorder(const std::filesystem::path& folder, int rank, const std::string& host, std::uint64_t launch);

  /// Local. A collective begins: next sequence number, one more call in its ledger. The clock of its cost starts.
  CallRecord enter(std::string_view operation, const std::string& axis, std::int64_t bytes, const CallInfo& info);
  /// Local. The backend has taken the call; the time since enter() was exposed.
  void issued(const CallRecord& call);
  /// Local. The rank begins to wait for it. One wait at a time.
  void begin_wait(CallRecord& call);
  /// Local. The wait is over; `complete`: so is the operation, and the time since begin_wait() was exposed.
  void end_wait(CallRecord& call, bool complete);
  /// Local. The operation is done. `times.exposed` is what issued() and end_wait() have not counted. Every backend
  /// reports every operation once; at the latest when it is asked to.
  void complete(const CallRecord& call, const CallTimes& times);
  /// Local. Before a ledger is read, `collector` is called: it reports what is done and was not reported yet. Only from
  /// the owning thread.
  void add_collector(std::function<void()> collector) { collectors_.push_back(std::move(collector)); }
  void collect();

  /// Local. Names what the rank is about, for the watchdog's summary.
  void enter_phase(std::string_view phase);

  /// Local. Goes on in a new ring in this folder, with what the old one holds; the old file is removed. Throws IoError,
  /// and then stays with the old one.
  void move(const std::filesystem::path& folder);

  Ledger& ledger(bool control) { return control ? control_ledger_ : ledger_; }
  std::filesystem::path folder() const;

  /// Local. The ring may be replaced while others than the owning thread look at it: they hold this.
  std::mutex& mutex() { return mutex_; }
  FlightRecorder& file() { return *file_; }

 private:
  FlightRecord& ring() { return file_->ring(); }

  mutable std::mutex mutex_;
  std::unique_ptr<FlightRecorder> file_;
  Ledger ledger_, control_ledger_;
  std::vector<std::function<void()>> collectors_;
};

}  // namespace meshard
