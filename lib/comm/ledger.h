#pragma once
// What went over the wire: one entry per (operation, axis), counted by the formulas of DESIGN.md section 6 from the
// real buffer sizes of each call. Tests and metrics read it; `plan` derives the same numbers from the config alone.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

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
  double seconds = 0.0;    ///< mpi: what this rank spent issuing and waiting; nccl: from start to end on the device
  bool operator==(const Traffic& other) const { return count == other.count && bytes == other.bytes; }
};

class Ledger {
 public:
  using Key = std::pair<std::string, std::string>;  ///< operation, axis

  /// Local. One more call of `operation` on `axis`, which sent `bytes`.
  void add(std::string_view operation, std::string_view axis, std::int64_t bytes);
  /// Local. Time of a call that is already counted.
  void add_seconds(std::string_view operation, std::string_view axis, double seconds);

  const std::map<Key, Traffic>& entries() const { return entries_; }
  /// Local. Zero if there was no such call.
  Traffic at(std::string_view operation, std::string_view axis) const;

  /// Local. Seconds of all entries together.
  double seconds() const;
  void clear() { entries_.clear(); }

 private:
  std::map<Key, Traffic> entries_;
};

}  // namespace meshard
