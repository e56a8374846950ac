#include "comm/mpi/engine.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <chrono>

#include "comm/ledger.h"

namespace meshard {

namespace {

constexpr std::chrono::microseconds kThreadNap{500};

class Backoff {
 public:
  void pause() {
    if (rounds_ < kSpins + kYields) {
      if (++rounds_ > kSpins) ::sched_yield();
      return;
    }
    timespec nap{.tv_sec = 0, .tv_nsec = nap_};
    ::nanosleep(&nap, nullptr);
    nap_ = std::min(nap_ + nap_ / 4, kLongestNap);
  }

 private:
  static constexpr int kSpins = 100;   // some tens of microseconds
  static constexpr int kYields = 100;  // at least as long again; longer if another rank takes the core
  static constexpr long kShortestNap = 10'000, kLongestNap = 200'000;  // nanoseconds
  int rounds_ = 0;
  long nap_ = kShortestNap;
};

/// Signals are for the thread that trains.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

MpiEngine::MpiEngine(Recorder& recorder) : recorder_(recorder) {
  recorder_.add_collector([this] { report(); });
  // The kernel adds 50 us to every sleep by default, five times our shortest. Threads inherit it.
  ::prctl(PR_SET_TIMERSLACK, 1000);
}

MpiEngine::~MpiEngine() {
  stop_thread();
}

void MpiEngine::start_thread() {
  if (thread_.joinable()) return;
  stop_ = false;
  SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

void MpiEngine::stop_thread() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void MpiEngine::add(MpiOperation& operation, const MpiChannel& channel) {
  operation.channel_ = &channel;
  operation.active_ = true;
  active_.push_back(&operation);
  if (idle_) wake_.notify_one();
}

void MpiEngine::step_all() {
  std::erase_if(active_, [&](MpiOperation* each) {
    try {
      if (!each->step()) return false;
      each->finished_ = steady_seconds();
      finished_.push_back(each);
    } catch (...) {
      each->error_ = std::current_exception();
    }
    each->active_ = false;
    return true;
  });
}

void MpiEngine::finish(MpiOperation& operation) {
  std::unique_lock lock(mutex_);
  ++waiting_;
  for (Backoff backoff; operation.active_;) {
    step_all();
    if (!operation.active_) break;
    lock.unlock();
    backoff.pause();
    lock.lock();
  }
  --waiting_;
  if (operation.error_) std::rethrow_exception(operation.error_);
}

bool MpiEngine::finished(const MpiOperation& operation) {
  std::lock_guard lock(mutex_);
  return !operation.active_;
}

void MpiEngine::report() {
  std::lock_guard lock(mutex_);
  for (auto each : finished_) recorder_.complete(each->call_, {.begin = each->call_.entered, .end = each->finished_});
  finished_.clear();
}

void MpiEngine::remove(MpiOperation& operation) {
  std::lock_guard lock(mutex_);
  std::erase(active_, &operation);
  std::erase(finished_, &operation);
  operation.active_ = false;
}

void MpiEngine::remove_all(const MpiChannel& channel) {
  std::lock_guard lock(mutex_);
  std::erase_if(active_, [&](MpiOperation* each) {
    if (each->channel_ != &channel) return false;
    each->active_ = false;
    return true;
  });
}

// It sleeps before it looks: most operations are waited for at once. A nap is short beside what the buffers of a slow
// network's sockets hold, and long beside the cost of a look.
void MpiEngine::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (active_.empty()) {
      idle_ = true;
      wake_.wait(lock, [&] { return stop_ || !active_.empty(); });
      idle_ = false;
    }
    if (wake_.wait_for(lock, kThreadNap, [&] { return stop_; })) return;
    if (waiting_ == 0) step_all();
  }
}

}  // namespace meshard
