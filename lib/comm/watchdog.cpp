#include "comm/watchdog.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace meshard {

namespace {
using namespace std::chrono_literals;
constexpr auto kRound = 250ms;
/// A round that took longer than this was spent stopped, not waiting.
constexpr auto kLongestRound = 1000ms;
/// Between two readings of the heartbeats: several rounds of a rank that lives, on a crowded machine.
constexpr auto kListen = 1500ms;
/// What the ranks that do not write the summary leave to the one that does.
constexpr auto kGrace = 3000ms;

/// Only the first of the ranks that share this folder creates the file.
bool write_first(const std::filesystem::path& path, const std::string& text) {
  int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return errno != EEXIST;
  auto written = ::write(file, text.data(), text.size());
  ::close(file);
  return written >= 0;
}
}  // namespace

Watchdog::Watchdog(Recorder& recorder, const WatchdogOptions& options) : recorder_(recorder), options_(options) {
  // Signals are for the training thread: a new thread inherits the mask.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Watchdog::set_timeout(std::chrono::milliseconds timeout) {
  std::lock_guard lock(mutex_);
  options_.timeout = timeout;
}

void Watchdog::set_probe(Probe probe) {
  std::lock_guard lock(mutex_);
  probe_ = std::move(probe);
}

void Watchdog::run() {
  auto last = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kRound, [this] { return stop_; })) {
    auto now = std::chrono::steady_clock::now();
    if (overdue(std::chrono::duration_cast<std::chrono::milliseconds>(now - last))) report_and_exit();
    last = now;
  }
}

bool Watchdog::overdue(std::chrono::milliseconds elapsed) {
  std::uint64_t waiting = 0;
  {
    std::lock_guard lock(recorder_.mutex());
    recorder_.file().ring().heartbeat.fetch_add(1, std::memory_order_relaxed);
    waiting = recorder_.file().ring().waiting.load(std::memory_order_acquire);
    if (options_.several_hosts) recorder_.file().flush();
  }
  // Whatever the rank waits for: the probe also aborts communicators that have failed, which may be what it waits for.
  auto unfinished = probe_ ? probe_() : 0;
  if (waiting == 0) waiting = unfinished;
  if (waiting == 0 || waiting != watched_) {
    watched_ = waiting;
    waited_ = 0ms;
    return false;
  }
  waited_ += std::min<std::chrono::milliseconds>(elapsed, kLongestRound);
  return waited_ > options_.timeout;
}

HangEvidence Watchdog::collect() {
  HangEvidence evidence;
  evidence.timeout_seconds = std::chrono::duration<double>(options_.timeout).count();
  evidence.reporter = options_.rank;
  evidence.folder = recorder_.folder().string();
  std::vector<std::uint64_t> heartbeats(options_.size);
  for (int rank = 0; rank < options_.size; ++rank) {
    auto ring = read_flight_record(evidence.folder, rank, options_.launch);
    if (ring) heartbeats[rank] = ring->heartbeat;
  }
  for (auto slept = 0ms; slept < kListen; slept += kRound) {
    std::this_thread::sleep_for(kRound);
    std::lock_guard lock(recorder_.mutex());
    recorder_.file().ring().heartbeat.fetch_add(1, std::memory_order_relaxed);
    if (options_.several_hosts) recorder_.file().flush();
  }
  evidence.now = wall_seconds();
  for (int rank = 0; rank < options_.size; ++rank) {
    evidence.rings.push_back(read_flight_record(evidence.folder, rank, options_.launch));
    evidence.silent.push_back(evidence.rings.back() && evidence.rings.back()->heartbeat == heartbeats[rank]);
  }
  return evidence;
}

void Watchdog::report_and_exit() {
  auto evidence = collect();
  auto path = recorder_.folder() / fmt::format("hang-{:016x}.txt", options_.launch);
  auto text = hang_report(evidence);
  if (write_first(path, text)) {
    Log::error(fmt::format("{}summary: {}", text, path.string()));
  } else {
    std::this_thread::sleep_for(kGrace);
  }
  ::_exit(kExitHang);
}

}  // namespace meshard
