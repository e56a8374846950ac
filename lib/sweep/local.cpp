#include "sweep/local.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <set>

#include "base/cores.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "sweep/batch.h"
#include "sweep/jobs.h"

namespace meshard {

namespace {

using Clock = std::chrono::steady_clock;

int usable_cores() {
  return std::max(1, static_cast<int>(allowed_cores().size()));
}

/// run.threads: auto is all cores for the ranks of one point.
int threads_of(const CheckedPoint& point, int cores) {
  return point.config.run.threads > 0 ? point.config.run.threads : std::max(1, cores / point.ranks);
}

int points_that_fit(const std::vector<CheckedPoint>& points, int cores) {
  int most = 1;
  for (auto& point : points) most = std::max(most, point.ranks * threads_of(point, cores));
  return std::max(1, cores / most);
}

std::vector<std::string> point_command(const CheckedPoint& point, const LocalSweep& sweep,
                                       const std::vector<std::string>& mpi_options, int at_a_time) {
  auto run_folder = sweep.folder / point.point.name;
  auto cores = usable_cores();
  std::vector<std::string> words;
  if (geteuid() == 0) words = {"env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};
  auto add = [&](const std::vector<std::string>& more) { words.insert(words.end(), more.begin(), more.end()); };
  add({(sweep.scripts / "launch.sh").string(), "--with", std::to_string(getpid())});
  add({"mpirun", "-n", std::to_string(point.ranks), "--bind-to", "none"});
  // More ranks than cores: those that wait give their core away.
  if (point.ranks * at_a_time > cores) add({"--oversubscribe", "--mca", "mpi_yield_when_idle", "1"});
  add(mpi_options);
  add({std::filesystem::read_symlink("/proc/self/exe").string(), "train", (run_folder / "point.yaml").string(),
       "--run-dir", run_folder.string(), "--resume", "auto", "--expect-ranks", std::to_string(point.ranks)});
  // A run takes the machine to be its own.
  bool shares_cores = point.config.run.threads == 0 && at_a_time > 1;
  if (shares_cores) add({"--set", fmt::format("run.threads={}", std::max(1, cores / (point.ranks * at_a_time)))});
  return words;
}

/// What a terminal shows below the lines that stay.
class LiveTable {
 public:
  bool on() const { return on_; }

  void erase() {
    if (lines_ > 0) std::cout << fmt::format("\033[{}A\033[J", lines_);
    lines_ = 0;
  }

  void draw(const std::vector<std::string>& lines) {
    erase();
    winsize size = {};
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    auto columns = size.ws_col > 1 ? size.ws_col - 1u : 79u, rows = size.ws_row > 2 ? size.ws_row - 2u : 22u;
    lines_ = std::min<std::size_t>(lines.size(), rows);
    for (std::size_t i = 0; i < lines_; ++i) std::cout << printable(lines[i]).substr(0, columns) << "\n";
    std::cout << std::flush;
  }

 private:
  bool on_ = isatty(STDOUT_FILENO) == 1;
  std::size_t lines_ = 0;
};

class SweepView : public JobWatcher {
 public:
  /// `jobs`: the points that the jobs are of, by index.
  SweepView(const LocalSweep& sweep, const std::vector<CheckedPoint>& points, const std::vector<std::size_t>& jobs,
            std::vector<PointStatus>& statuses)
      : sweep_(sweep), points_(points), jobs_(jobs), statuses_(statuses) {}
  ~SweepView() override { table_.erase(); }

  JobTurn turn(std::size_t job) override {
    if (auto holder = FolderLock::holder(folder(job))) {
      if (!holder->here) return JobTurn::Skip;
      if (told_.insert(job).second)
        print(fmt::format("point {}: waiting for {}, which runs it", name(job), holder->text));
      return JobTurn::Wait;
    }
    return look(job).done() ? JobTurn::Skip : JobTurn::Start;
  }

  void started(std::size_t job) override {
    running_.insert(job);
    if (!table_.on()) print(fmt::format("point {}: started", name(job)));
  }

  void skipped(std::size_t job) override { ended_with(job, look(job).text()); }

  void refused(std::size_t job, const std::string& problem) override {
    auto& status = statuses_[jobs_[job]];
    status.run.phase = RunPhase::Failed;
    status.problem = problem;
    ended_with(job, problem);
  }

  void ended(std::size_t job, int exit) override {
    running_.erase(job);
    auto& status = look(job);
    bool done = status.done() && exit == kExitDone;
    status.run.exit = exit;
    status.run.phase = done ? RunPhase::Done : exit == kExitRequeue ? RunPhase::Preempted : RunPhase::Failed;
    if (!done && exit == kExitDone) status.problem = "ended with exit 0, but its metrics.jsonl does not";
    auto log = status.run.phase == RunPhase::Failed ? ": see " + (folder(job) / "job.log").string() : "";
    ended_with(job, fmt::format("{} (exit {}){}", to_string(status.run.phase), exit, log));
  }

  void tick(bool stopping) override {
    if (!table_.on() || Clock::now() < next_) return;
    next_ = Clock::now() + std::chrono::milliseconds(500);
    std::vector<std::string> lines = {fmt::format("{}/{} ended, {} running{}, {:.0f} s", ended_, jobs_.size(),
                                                  running_.size(), stopping ? ", stopping" : "",
                                                  std::chrono::duration<double>(Clock::now() - begin_).count())};
    for (auto job : running_) {
      lines.push_back(
          fmt::format("  {}  step {}/{}", name(job), look(job).run.step, points_[jobs_[job]].config.train.steps));
    }
    table_.draw(lines);
  }

 private:
  const std::string& name(std::size_t job) const { return points_[jobs_[job]].point.name; }
  std::filesystem::path folder(std::size_t job) const { return sweep_.folder / name(job); }
  PointStatus& look(std::size_t job) { return statuses_[jobs_[job]] = point_status(folder(job)); }

  void ended_with(std::size_t job, const std::string& how) {
    ++ended_;
    print(fmt::format("point {}: {} {}/{}", name(job), how, ended_, jobs_.size()));
  }

  void print(const std::string& line) {
    table_.erase();
    log_.print(line);
  }

  const LocalSweep& sweep_;
  const std::vector<CheckedPoint>& points_;
  const std::vector<std::size_t>& jobs_;
  std::vector<PointStatus>& statuses_;
  Log log_;
  LiveTable table_;
  std::set<std::size_t> running_, told_;
  std::size_t ended_ = 0;
  Clock::time_point begin_ = Clock::now(), next_ = begin_;
};

}  // namespace

bool run_points_here(const LocalSweep& sweep, const std::vector<CheckedPoint>& points,
                     std::vector<PointStatus>& statuses) {
  auto mpi_options = site_words(sweep.scripts, {"MESHARD_MPI_OPTIONS"}).front();
  auto at_a_time = sweep.at_a_time.value_or(points_that_fit(points, usable_cores()));
  std::vector<LocalJob> jobs;
  std::vector<std::size_t> points_of_jobs;
  for (std::size_t i = 0; i < points.size(); ++i) {
    auto& status = statuses[i];
    bool ends_here = status.open() || (status.holder && status.holder->here && !status.done());
    if (!ends_here) continue;
    jobs.push_back(
        {point_command(points[i], sweep, mpi_options, at_a_time), sweep.folder / points[i].point.name / "job.log"});
    points_of_jobs.push_back(i);
  }
  Log().print(fmt::format("{} of {} points to run, {} at a time on {} cores", jobs.size(), points.size(), at_a_time,
                          usable_cores()));
  SweepView view(sweep, points, points_of_jobs, statuses);
  return run_local_jobs(jobs, at_a_time, view);
}

}  // namespace meshard
