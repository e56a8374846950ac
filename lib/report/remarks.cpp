#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "report/run.h"

namespace meshard {

namespace fs = std::filesystem;

namespace {

/// Steps of complete checkpoints (a folder with a .metadata), none if there is no folder.
std::vector<std::int64_t> checkpoints_in(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code failed;
  for (auto& entry : fs::directory_iterator(folder, failed)) {
    auto name = entry.path().filename().string();
    std::int64_t step = 0;
    auto digits = name.starts_with("step-") ? name.substr(5) : "";
    auto [stop, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
    bool is_step = bad == std::errc{} && stop == digits.data() + digits.size();
    if (is_step && fs::exists(entry.path() / ".metadata", failed)) steps.push_back(step);
  }
  return steps;
}

/// What the run has left behind by its own account, and is not there.
std::string missing_checkpoint(const RunReport& run, const LooseConfig& config) {
  auto interval = config.number("checkpoint.interval").value_or(0);
  bool at_end = run.state.phase == RunPhase::Preempted || (run.state.phase == RunPhase::Done && interval > 0);
  bool before = interval > 0 && run.state.step >= 2 * interval;  // the first may still be written
  if (run.state.step == 0 || !(at_end || before)) return "";
  auto there = checkpoints_in(run.folder / "checkpoints");
  auto newest = there.empty() ? 0 : std::ranges::max(there);
  if (newest == 0) return "its checkpoints are gone: nothing to resume from or to evaluate";
  if (!at_end || newest >= run.state.step) return "";
  return fmt::format("the checkpoint of its last step, {}, is gone; the newest is of step {}", run.state.step, newest);
}

std::string plural(std::int64_t count, const std::string& one, const std::string& many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

}  // namespace

void add_remarks(RunReport& run, const RunLines& lines, const LooseConfig& config, const std::string& version) {
  auto add = [&](bool holds, auto text) {
    if (holds) run.remarks.push_back(text());
  };
  auto& numbers = run.numbers;
  auto& facts = run.facts;
  auto dead = lines.steps[Curve::Dead].empty() ? 0.0 : lines.steps[Curve::Dead].back();
  add(run.state.phase == RunPhase::Failed, [&] { return run.state.reason; });
  add(!facts.fault.empty(), [&] { return "fault on: " + facts.fault; });
  add(lines.torn, [] { return "its last line is cut off"; });
  add(!lines.unknown.empty(), [&] {
    return fmt::format(
        "{}, first metrics.jsonl:{}",
        plural(std::ssize(lines.unknown), "line that is none of a run's", "lines that are none of a run's"),
        lines.unknown.front());
  });
  add(lines.headers.empty(), [] { return "no header line"; });
  add(!lines.headers.empty() && facts.version != version, [&] {
    auto other = facts.version.empty() ? "a version that its header does not name" : "version " + facts.version;
    return fmt::format("written by {}; this is {}", other, version);
  });
  add(!config.problem.empty(), [&] { return config.problem; });
  add(lines.steps.steps.empty(), [] { return "no step logged"; });
  add(numbers.nonfinite_lines > 0, [&] {
    return fmt::format("not finite at {}, first step {}",
                       plural(numbers.nonfinite_lines, "logged step", "logged steps"), numbers.first_nonfinite_step);
  });
  add(numbers.dropped > 0, [&] { return fmt::format("{:.0f} pairs dropped at the logged steps", numbers.dropped); });
  add(dead > 0, [&] { return plural(std::llround(dead), "expert", "experts") + " without a token at the end"; });
  auto gone = missing_checkpoint(run, config);
  add(!gone.empty(), [&] { return gone; });
}

}  // namespace meshard
