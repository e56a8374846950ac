#pragma once
// The watchdog's view of one rank: a file, mapped into the rank's memory, that holds the last 256 collectives of the
// rank, what it waits for, its phase and a heartbeat. It is written without locks or system calls, and any process that
// sees the folder can read it, even when its rank is stopped or dead. DESIGN.md section 7.

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace meshard {

inline constexpr int kFlightEntries = 256;

/// One collective of one rank. Times are seconds of the wall clock; 0: not yet.
struct FlightEntry {
  std::uint64_t sequence;
  std::int64_t bytes;  ///< sent by this rank, by formula
  double entered;
  double left;
  char operation[16];
  char axis[16];
  char unit[64];  ///< cut if longer
};

/// The whole file, as it is mapped.
struct FlightRecord {
  std::uint64_t launch;  ///< the same number on all ranks of one start; a ring of another start is not read
  std::int32_t rank;
  std::int32_t pid;
  char host[64];
  std::atomic<std::uint64_t> heartbeat;  ///< counts the watchdog thread's rounds
  std::atomic<std::uint64_t> sequence;   ///< of the last collective entered
  std::atomic<std::uint64_t> waiting;    ///< sequence of the collective that the rank waits for; 0: none
  double waiting_since;
  double phase_since;
  char phase[32];
  std::array<FlightEntry, kFlightEntries> entries;  ///< entry of sequence s: s % 256
};

/// Local. Copies `text` into a field of a ring, cut to fit, with a final zero.
template <std::size_t size>
void copy_text(char (&field)[size], std::string_view text) {
  auto length = text.copy(field, size - 1);
  field[length] = '\0';
}

/// Local. Seconds of the wall clock since 1970.
double wall_seconds();

/// A ring file, created and mapped.
class FlightRecorder {
 public:
  /// Local. Makes the folder if it is missing and the file `ring-<rank>.bin` in it, in place of an old one. Throws
  /// IoError naming the file.
  FlightRecorder(const std::filesystem::path& folder, int rank);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  FlightRecord& ring() { return *ring_; }
  const std::filesystem::path& path() const { return path_; }

  /// Local. Writes the mapped pages out, so that other hosts can read them through a shared file system.
  void flush() noexcept;
  /// Local. Removes the file; the mapping stays.
  void remove() noexcept;

 private:
  std::filesystem::path path_;
  FlightRecord* ring_;
};

/// What was read of another rank's ring.
struct FlightSnapshot {
  int rank = 0;
  int pid = 0;
  std::string host;
  std::uint64_t heartbeat = 0;
  std::uint64_t sequence = 0;
  std::uint64_t waiting = 0;
  double waiting_since = 0.0;
  double phase_since = 0.0;
  std::string phase;
  std::array<FlightEntry, kFlightEntries> entries{};

  /// Local. The entry of this sequence number, if it is still in the ring.
  const FlightEntry* find(std::uint64_t sequence) const;
};

/// Local. Reads the ring of `rank`; nothing if the file is missing, short, or of another launch.
std::optional<FlightSnapshot> read_flight_record(const std::filesystem::path& folder, int rank, std::uint64_t launch);

}  // namespace meshard
