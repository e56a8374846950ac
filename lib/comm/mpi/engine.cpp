#include "comm/mpi/engine.h"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

namespace meshard {

namespace {

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

}  // namespace

MpiEngine::MpiEngine() {
  // The kernel adds 50 us to every sleep by default, five times our shortest.
  ::prctl(PR_SET_TIMERSLACK, 1000);
}

bool MpiEngine::active(const MpiOperation& operation) const {
  return std::find(active_.begin(), active_.end(), &operation) != active_.end();
}

void MpiEngine::finish(MpiOperation& operation) {
  for (Backoff backoff; active(operation); backoff.pause()) {
    std::erase_if(active_, [](MpiOperation* each) { return each->step(); });
  }
}

}  // namespace meshard
