#include "checkpoint/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace meshard {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kPartialSuffix = ".partial";

std::string step_name(std::int64_t step) {
  return fmt::format("{}{:08}", kStepPrefix, step);
}

/// None for any other spelling than step_name()'s.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return {};
  std::int64_t step = 0;
  std::from_chars(name.data() + kStepPrefix.size(), name.data() + name.size(), step);
  return step >= 0 && step_name(step) == name ? std::optional(step) : std::nullopt;
}
}  // namespace

std::filesystem::path CheckpointStore::folder(std::int64_t step) const {
  return root_ / step_name(step);
}

std::vector<std::int64_t> CheckpointStore::complete() const {
  std::vector<std::int64_t> steps;
  for (auto& name : files_.list(root_)) {
    if (auto step = step_of(name); step && files_.exists(root_ / name / ".metadata")) steps.push_back(*step);
  }
  std::ranges::sort(steps, std::greater{});
  return steps;
}

void CheckpointStore::clear_partials() {
  for (auto& name : files_.list(root_)) {
    if (!name.ends_with(kPartialSuffix)) continue;
    if (step_of(name.substr(0, name.size() - kPartialSuffix.size()))) files_.remove_all(root_ / name);
  }
}

}  // namespace meshard
