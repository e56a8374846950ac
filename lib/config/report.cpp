#include "config/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "base/error.h"

namespace meshard {

void Report::add(const Place& place, const std::string& path, std::string what) {
  bad_.insert(path);
  problems_.push_back({place, path, std::move(what)});
}

void Report::at(const std::string& path, std::string what) {
  auto written = path;
  while (!written.empty() && !given(written)) {
    auto dot = written.rfind('.');
    written = dot == std::string::npos ? "" : written.substr(0, dot);
  }
  auto found = places_.find(written);
  add(found == places_.end() ? Place{} : found->second, path, std::move(what));
}

bool Report::clean(std::initializer_list<std::string_view> paths) const {
  for (auto path : paths) {
    for (auto dot = path.find('.');; dot = path.find('.', dot + 1)) {
      if (bad_.count(path.substr(0, dot))) return false;
      if (dot == std::string_view::npos) break;
    }
  }
  return true;
}

std::string Report::line_of(const Problem& problem) const {
  const auto& place = problem.place;
  std::string line;
  if (place.override_key.empty()) {
    line = fmt::format("{}:{}:{}  ", std::filesystem::path(file_).filename().string(), place.line, place.column);
    if (!problem.path.empty()) line += problem.path + ": ";
  } else {
    line = fmt::format("--set {}: ", place.override_key);
    if (!problem.path.empty() && problem.path != place.override_key) line += problem.path + ": ";
  }
  line += problem.what;
  if (!place.via.empty()) line += fmt::format(" (read from {})", place.via);
  return line;
}

void Report::throw_if_any() const {
  if (problems_.empty()) return;
  auto sorted = problems_;
  std::ranges::stable_sort(sorted, {}, [](const Problem& p) {
    return std::tuple(!p.place.override_key.empty(), p.place.line, p.place.column);
  });
  auto message = fmt::format("config error: {} problem{} in {}", sorted.size(), sorted.size() == 1 ? "" : "s", file_);
  for (const auto& problem : sorted) message += "\n  " + line_of(problem);
  throw ConfigError(message);
}

}  // namespace meshard
