#include "report/report.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "report/maps.h"
#include "report/run.h"
#include "report/settings.h"

namespace meshard {

namespace {

// A page of 50 runs stays under 3 MB: this many numbers of curves (17 curves, three numbers a point) and cells of maps.
constexpr std::size_t kCurveNumbers = 200'000, kMostPoints = 400, kFewestPoints = 40;
constexpr std::size_t kMapCells = 700'000, kMostColumns = 120, kFewestColumns = 24;

/// Calls work(0), ..., work(count - 1) on all cores. Rethrows the exception of the lowest index.
template <typename Work>
void on_all_cores(std::size_t count, Work work) {
  std::vector<std::exception_ptr> failures(count);
  std::atomic<std::size_t> next = 0;
  auto take = [&] {
    for (auto index = next++; index < count; index = next++) {
      try {
        work(index);
      } catch (...) {
        failures[index] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> helpers(std::min<std::size_t>(count, std::max(1u, std::thread::hardware_concurrency())) -
                                      1);
    for (auto& helper : helpers) helper = std::jthread(take);
    take();
  }
  for (auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// Runs that ended well or go on, with evaluations, then without; failed ones; missing ones.
int group_of(const RunReport& run) {
  switch (run.state.phase) {
    case RunPhase::Missing:
      return 3;
    case RunPhase::Failed:
    case RunPhase::Died:
      return 2;
    case RunPhase::Running:
    case RunPhase::Done:
    case RunPhase::Preempted:
      return run.numbers.best_eval_loss ? 0 : 1;
  }
  throw LogicError("unknown phase of a run");
}

bool goes_before(const ReadRun& a, const ReadRun& b) {
  auto key = [](const RunReport& run) {
    auto or_last = [](std::optional<double> loss) { return loss && std::isfinite(*loss) ? *loss : INFINITY; };
    return std::tuple(group_of(run), or_last(run.numbers.best_eval_loss), or_last(run.numbers.final_loss));
  };
  return key(a.report) < key(b.report);
}

/// The first runs get maps, as many as can have some columns each; the first one always.
void add_maps(RunsReport& report, const std::vector<ReadRun>& read) {
  std::vector<std::size_t> cells(read.size());
  auto metrics_of = [&](std::size_t i) { return report.runs[i].folder / "metrics.jsonl"; };
  on_all_cores(read.size(), [&](std::size_t i) { cells[i] = cells_per_step(metrics_of(i), read[i].line_offsets); });
  std::size_t sum = 0;
  for (auto& own : cells) {
    bool fits = sum == 0 || (sum + own) * kFewestColumns <= kMapCells;
    if (!fits) ++report.runs_without_maps, own = 0;
    sum += own;
  }
  if (sum == 0) return;
  auto columns = std::clamp<std::size_t>(kMapCells / sum, 1, kMostColumns);
  on_all_cores(read.size(), [&](std::size_t i) {
    if (cells[i] > 0) report.runs[i].maps = read_expert_maps(metrics_of(i), read[i].line_offsets, columns);
  });
}

}  // namespace

RunsReport make_report(const std::vector<std::filesystem::path>& arguments, const std::string& version) {
  auto sources = find_runs(arguments);
  auto points = std::clamp(kCurveNumbers / (3 * kCurveNames.size() * sources.size()), kFewestPoints, kMostPoints);
  std::vector<ReadRun> read(sources.size());
  on_all_cores(sources.size(), [&](std::size_t i) { read[i] = read_run_report(sources[i], points, version); });
  std::ranges::stable_sort(read, goes_before);

  RunsReport report;
  for (auto& run : read) report.runs.push_back(std::move(run.report));
  report.settings = differing_keys(report.runs);
  for (auto& run : report.runs) {
    std::erase_if(run.settings, [&](auto& setting) {
      return std::ranges::find(report.settings, setting.first) == report.settings.end();
    });
  }
  add_maps(report, read);
  return report;
}

}  // namespace meshard
