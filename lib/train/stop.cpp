#include "train/stop.h"

#include <ATen/ops/full.h>
#include <signal.h>

#include <atomic>

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
    default:
      return "a signal asked for it";
  }
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { caught_signal.store(signal); };
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
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
