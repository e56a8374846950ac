#include "train/stop.h"

#include <ATen/ops/full.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace meshard {

namespace {

// A signal handler can reach nothing else.
std::atomic<int> caught_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

// Of several the last is agreed on: a STOP file wants an end for good, the others may be followed by another start.
enum Reason { kNone, kTimeLimit, kSignal, kStopFile };

std::string text_of(Reason reason) {
  switch (reason) {
    case kTimeLimit:
      return "train.max_minutes is over, but for the time of a checkpoint";
    case kStopFile:
      return "a STOP file asked for it";
    case kSignal:
      return "a signal asked for it";
    case kNone:
      break;
  }
  throw LogicError("no reason to stop");
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { caught_signal.store(signal); };
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
}

double seconds_of_process() {
  std::ifstream stat("/proc/self/stat");
  std::string line, field;
  std::getline(stat, line);
  std::istringstream rest(line.substr(line.rfind(')') + 1));
  for (int i = 0; i < 20; ++i) rest >> field;  // field 22: clock ticks from the boot to the start
  timespec now{};
  if (!rest || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0.0;
  auto begin = std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - begin;
}

StopRequests::StopRequests(World& world, std::filesystem::path stop_file, std::optional<double> max_minutes)
    : world_(world), stop_file_(std::move(stop_file)) {
  if (max_minutes) {
    deadline_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                       std::chrono::duration<double, std::ratio<60>>(*max_minutes));
  }
}

int StopRequests::own_reason() const {
  if (world_.rank() == 0 && std::filesystem::exists(stop_file_)) return kStopFile;
  if (caught_signal.load() != 0) return kSignal;
  if (world_.rank() != 0) return kNone;
  if (deadline_ && std::chrono::steady_clock::now() + reserved_ >= *deadline_) return kTimeLimit;
  return kNone;
}

std::optional<std::string> StopRequests::agreed() {
  if (agreed_) return agreed_;
  auto reason = at::full({1}, own_reason(), at::kLong);
  world_.control().all_reduce(reason, ReduceOp::Max, {"stop request", true}).wait();
  auto agreed = static_cast<Reason>(reason.item<std::int64_t>());
  if (agreed == kNone) return {};
  if (world_.rank() == 0) {
    std::error_code ignored;
    std::filesystem::remove(stop_file_, ignored);
  }
  return agreed_ = text_of(agreed);
}

}  // namespace meshard
