#pragma once
// Jobs of a sweep on this machine: so many at a time, stopped in order.

#include <filesystem>
#include <string>
#include <vector>

namespace meshard {

struct LocalJob {
  std::vector<std::string> command;
  std::filesystem::path log;  ///< its output is appended
};

/// What becomes of a job that is next.
enum class JobTurn {
  Start,
  Wait,  ///< somebody else is at it; ask again soon
  Skip,  ///< it is done
};

/// Decides about jobs, and hears of them; by their index.
class JobWatcher {
 public:
  virtual ~JobWatcher() = default;
  virtual JobTurn turn(std::size_t job) = 0;
  virtual void started(std::size_t job) = 0;
  virtual void ended(std::size_t job, int exit) = 0;
  virtual void skipped(std::size_t job) = 0;
  /// It could not even be started.
  virtual void refused(std::size_t job, const std::string& problem) = 0;
  /// Some times a second.
  virtual void tick(bool stopping) = 0;
};

/// Local. Runs the jobs in order, `at_a_time` of them; one that waits for somebody else takes a place too. INT, TERM,
/// HUP, USR1 and USR2 end it in order: no job is started any more, those that run get the signal (INT as INT, the
/// others as TERM: jobs/launch.sh makes a request to stop of both) and are waited for. A second INT reaches them as
/// well, and launch.sh ends them at once. Returns whether it was stopped.
bool run_local_jobs(const std::vector<LocalJob>& jobs, int at_a_time, JobWatcher& watcher);

}  // namespace meshard
