#include "comm/flight_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <new>
#include <vector>

#include "base/error.h"

namespace meshard {

namespace {
std::filesystem::path ring_path(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("ring-{}.bin", rank);
}

IoError cannot(const char* what, const std::filesystem::path& path, int reason) {
  return IoError(fmt::format("cannot {} the watchdog's ring {}: {}", what, path.string(), std::strerror(reason)));
}

std::string text_of(const char* field, std::size_t size) {
  return std::string(field, strnlen(field, size));
}
}  // namespace

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

FlightRecorder::FlightRecorder(const std::filesystem::path& folder, int rank) : path_(ring_path(folder, rank)) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::filesystem::remove(path_, error);
  int file = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) throw cannot("create", path_, errno);
  // Reserve the blocks now: a full disk would otherwise be a SIGBUS at some later write.
  int reason = ::posix_fallocate(file, 0, sizeof(FlightRecord));
  void* mapping = MAP_FAILED;
  if (reason == 0) {
    mapping = ::mmap(nullptr, sizeof(FlightRecord), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapping == MAP_FAILED) reason = errno;
  }
  ::close(file);
  if (reason != 0) throw cannot("map", path_, reason);
  ring_ = new (mapping) FlightRecord{};
}

FlightRecorder::~FlightRecorder() {
  ::munmap(ring_, sizeof(FlightRecord));
}

void FlightRecorder::flush() noexcept {
  ::msync(ring_, sizeof(FlightRecord), MS_SYNC);
}

void FlightRecorder::remove() noexcept {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

const FlightEntry* FlightSnapshot::find(std::uint64_t sequence) const {
  auto& entry = entries[sequence % kFlightEntries];
  return sequence != 0 && entry.sequence == sequence ? &entry : nullptr;
}

std::optional<FlightSnapshot> read_flight_record(const std::filesystem::path& folder, int rank, std::uint64_t launch) {
  // Opened anew each time: on a shared file system only that brings the latest contents.
  std::vector<char> bytes(sizeof(FlightRecord));
  std::ifstream file(ring_path(folder, rank), std::ios::binary);
  if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) return std::nullopt;
  auto& ring = *std::launder(reinterpret_cast<const FlightRecord*>(bytes.data()));
  if (ring.launch != launch || ring.rank != rank) return std::nullopt;
  return FlightSnapshot{.rank = ring.rank,
                      .pid = ring.pid,
                      .host = text_of(ring.host, sizeof ring.host),
                      .heartbeat = ring.heartbeat.load(),
                      .sequence = ring.sequence.load(),
                      .waiting = ring.waiting.load(),
                      .waiting_since = ring.waiting_since,
                      .phase_since = ring.phase_since,
                      .phase = text_of(ring.phase, sizeof ring.phase),
                      .entries = ring.entries};
}

}  // namespace meshard
