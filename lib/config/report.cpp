#include "config/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "base/error.h"
#include "base/text.h"

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

std::string Report::heading(std::size_t problems) const {
  return fmt::format("config error: {} problem{} in {}\n  ", problems, problems == 1 ? "" : "s", file_);
}

std::string Report::before_key(const Place& place) const {
  return heading(1) + (place.override_key.empty() ? text_of(place) + "  " : "--set ");
}

std::string Report::text_of(const Place& place) const {
  if (!place.override_key.empty()) return fmt::format("--set {}", on_one_line(shortened(place.override_key)));
  auto name = std::filesystem::path(file_).filename().string();
  return place.line == 0 ? name : fmt::format("{}:{}:{}", name, place.line, place.column);
}

std::string Report::line_of(const Problem& problem) const {
  auto& place = problem.place;
  auto line = text_of(place) + (place.override_key.empty() ? "  " : ": ");
  if (!problem.path.empty() && problem.path != place.override_key) line += on_one_line(shortened(problem.path)) + ": ";
  line += on_one_line(problem.what);
  if (!place.via.empty() && place.via != file_) line += fmt::format(" (read from {})", place.via);
  return line;
}

void Report::throw_if_any() const {
  if (problems_.empty()) return;
  auto sorted = problems_;
  std::ranges::stable_sort(sorted, {}, [](const Problem& p) {
    return std::tuple(!p.place.override_key.empty(), p.place.line, p.place.column);
  });
  auto message = heading(sorted.size());
  for (std::size_t i = 0; i < std::min(kShown, sorted.size()); ++i) message += (i ? "\n  " : "") + line_of(sorted[i]);
  if (sorted.size() > kShown) message += fmt::format("\n  and {} more", sorted.size() - kShown);
  throw ConfigError(message);
}

std::string shortened(std::string_view text) {
  constexpr std::size_t kLongest = 100;
  if (text.size() <= kLongest) return std::string(text);
  auto end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not within a character
  return fmt::format("{}..", text.substr(0, end));
}

}  // namespace meshard
