#pragma once
// What went over the wire: one entry per (operation, axis), counted by the formulas of DESIGN.md section 6 from the
// real buffer sizes of each call. Tests and metrics read it; `plan` derives the same numbers from the config alone.
// And the time that it took, by axis: how long computation stood still for it, and how long anything was on the way.
// Time belongs to the window since the ledger was last cleared; what a call took before that is not in it.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshard {

/// Bytes that one rank sends, by formula. `full_bytes` is the whole buffer, padding included.
/// all_gather, reduce_scatter, all_to_all: (n-1)/n of it; all_reduce: twice that.
constexpr std::int64_t gather_bytes(std::int64_t full_bytes, int n) {
  return full_bytes / n * (n - 1);
}
constexpr std::int64_t all_reduce_bytes(std::int64_t full_bytes, int n) {
  return 2 * full_bytes * (n - 1) / n;
}

struct Traffic {
  std::int64_t count = 0;
  std::int64_t bytes = 0;  ///< sent by this rank
  bool operator==(const Traffic& other) const = default;
};

/// Local. Seconds of a clock that only moves forward.
double steady_seconds();

/// When a collective was under way, seconds of steady_seconds(), and how long computation stood still for it.
struct CallTimes {
  double begin = 0.0;  ///< mpi: its issue; nccl: its start on the device
  double end = 0.0;
  double exposed = 0.0;  ///< of computation's time: none if it was done before it was waited for
};

class Ledger {
 public:
  using Key = std::pair<std::string, std::string>;  ///< operation, axis

  /// Local. One more call of `operation` on `axis`, which sent `bytes`.
  void add(std::string_view operation, std::string_view axis, std::int64_t bytes);
  /// Local. Call `sequence` is under way since `begin`.
  void open(std::uint64_t sequence, double begin);
  /// Local. It is done. A call that was done before the window began adds nothing.
  void close(std::string_view axis, std::uint64_t sequence, const CallTimes& times);
  /// Local. Computation stood still for the axis.
  void add_exposed(std::string_view axis, double seconds);

  const std::map<Key, Traffic>& entries() const { return entries_; }
  /// Local. Zero if there was no such call.
  Traffic at(std::string_view operation, std::string_view axis) const;

  /// Local. Seconds in which computation stood still, of each axis and of all together.
  const std::map<std::string, double>& exposed_by_axis() const { return exposed_; }
  double exposed() const;
  /// Local. Seconds of the window up to `now` in which at least one call was under way, on any axis.
  double busy(double now) const;

  /// Local. A new window begins. Calls under way stay under way.
  void clear(double now = steady_seconds());

 private:
  struct Interval {
    double begin, end;
  };
  std::map<Key, Traffic> entries_;
  std::map<std::string, double> exposed_;
  std::map<std::uint64_t, double> open_;  ///< when each call began
  std::vector<Interval> closed_;          ///< of this window
  double window_ = 0.0;
};

}  // namespace meshard
