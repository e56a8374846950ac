#include "comm/ledger.h"

#include <algorithm>
#include <chrono>

namespace meshard {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Ledger::add(std::string_view operation, std::string_view axis, std::int64_t bytes) {
  auto& traffic = entries_[Key(operation, axis)];
  traffic.count += 1;
  traffic.bytes += bytes;
}

void Ledger::open(std::uint64_t sequence, double begin) {
  open_[sequence] = begin;
}

void Ledger::close(std::string_view axis, std::uint64_t sequence, const CallTimes& times) {
  open_.erase(sequence);
  if (times.end <= window_) return;
  closed_.push_back({times.begin, times.end});
  add_exposed(axis, times.exposed);
}

void Ledger::add_exposed(std::string_view axis, double seconds) {
  if (seconds > 0.0) exposed_[std::string(axis)] += seconds;
}

Traffic Ledger::at(std::string_view operation, std::string_view axis) const {
  auto entry = entries_.find(Key(operation, axis));
  return entry == entries_.end() ? Traffic{} : entry->second;
}

double Ledger::exposed() const {
  double sum = 0.0;
  for (auto& [axis, seconds] : exposed_) sum += seconds;
  return sum;
}

double Ledger::busy(double now) const {
  auto intervals = closed_;
  for (auto& [sequence, begin] : open_) intervals.push_back({begin, now});
  std::ranges::sort(intervals, {}, &Interval::begin);
  double sum = 0.0, counted = window_;  // all until `counted` is counted
  for (auto& [begin, end] : intervals) {
    auto last = std::min(end, now);
    if (last > counted) sum += last - std::max(begin, counted);
    counted = std::max(counted, last);
  }
  return sum;
}

void Ledger::clear(double now) {
  entries_.clear();
  exposed_.clear();
  closed_.clear();
  window_ = now;
}

}  // namespace meshard
