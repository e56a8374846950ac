#include "sweep/jobs.h"

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <deque>
#include <map>
#include <thread>

#include "base/error.h"
#include "sweep/process.h"

namespace meshard {

namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(50);

class LocalRunner {
 public:
  LocalRunner(const std::vector<LocalJob>& jobs, std::size_t at_a_time, JobWatcher& watcher)
      : jobs_(jobs), at_a_time_(at_a_time), watcher_(watcher) {
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      (watcher.turn(job) == JobTurn::Wait ? held_ : queue_).push_back(job);
    }
  }

  bool run() {
    while (!idle()) {
      reap();
      if (int number = StopSignals::take()) stop(number);
      if (!stopping_) {
        look_at_held();
        start_what_fits();
      }
      watcher_.tick(stopping_);
      std::this_thread::sleep_for(kPollInterval);
    }
    return stopping_;
  }

 private:
  bool idle() const { return running_.empty() && (stopping_ || (queue_.empty() && held_.empty())); }

  void reap() {
    for (auto running = running_.begin(); running != running_.end();) {
      int status = 0;
      if (waitpid(running->first, &status, WNOHANG) == 0) {
        ++running;
        continue;
      }
      auto job = running->second;
      running = running_.erase(running);
      watcher_.ended(job, exit_code_of(status));
    }
  }

  void stop(int number) {
    stopping_ = true;
    for (auto& [pid, job] : running_) kill(pid, number == SIGINT ? SIGINT : SIGTERM);
  }

  void look_at_held() {
    for (std::size_t left = held_.size(); left > 0; --left) {
      auto job = held_.front();
      held_.pop_front();
      if (watcher_.turn(job) == JobTurn::Wait) {
        held_.push_back(job);
      } else {
        queue_.push_front(job);
      }
    }
  }

  void start_what_fits() {
    while (!queue_.empty() && running_.size() + held_.size() < at_a_time_) {
      auto job = queue_.front();
      queue_.pop_front();
      switch (watcher_.turn(job)) {
        case JobTurn::Start:
          start(job);
          break;
        case JobTurn::Wait:
          held_.push_back(job);
          break;
        case JobTurn::Skip:
          watcher_.skipped(job);
          break;
      }
    }
  }

  void start(std::size_t job) {
    try {
      running_.emplace(start_command(jobs_[job].command, jobs_[job].log), job);
      watcher_.started(job);
    } catch (const IoError& error) {
      watcher_.refused(job, error.what());
    }
  }

  const std::vector<LocalJob>& jobs_;
  std::size_t at_a_time_;
  JobWatcher& watcher_;
  std::deque<std::size_t> queue_, held_;
  std::map<pid_t, std::size_t> running_;
  bool stopping_ = false;
};

}  // namespace

bool run_local_jobs(const std::vector<LocalJob>& jobs, int at_a_time, JobWatcher& watcher) {
  StopSignals signals;
  return LocalRunner(jobs, static_cast<std::size_t>(at_a_time), watcher).run();
}

}  // namespace meshard
