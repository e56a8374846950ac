#include "comm/timeline/order_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"

namespace meshard {

namespace {
std::atomic<OrderChecker*> active_checker = nullptr;
}  // namespace

ByteRange range_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0 || !tensor.has_storage()) return {};
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + (last + 1) * static_cast<std::int64_t>(tensor.element_size())};
}

OrderChecker::~OrderChecker() {
  auto* me = this;
  active_checker.compare_exchange_strong(me, nullptr);
}

OrderChecker* OrderChecker::active() {
  return active_checker.load(std::memory_order_relaxed);
}

void OrderChecker::activate() {
  active_checker = this;
}

int OrderChecker::lane_of(std::string_view name) {
  auto found = lanes_.find(name);
  if (found != lanes_.end()) return found->second;
  clocks_.emplace_back();
  return lanes_.emplace(name, static_cast<int>(lanes_.size())).first->second;
}

int OrderChecker::name_of(std::string_view lane, const Operation& operation) {
  auto name = operation.name;
  if (!operation.axis.empty()) name += fmt::format(" on axis {}", operation.axis);
  if (!operation.unit.empty()) name += fmt::format(" of {}", operation.unit);
  if (!lane.empty()) name += fmt::format(" (lane {})", lane);
  auto [entry, is_new] = name_numbers_.try_emplace(name, static_cast<int>(names_.size()));
  if (is_new) names_.push_back(name);
  return entry->second;
}

OrderChecker::Clock& OrderChecker::clock_of(int lane) {
  auto& clock = clocks_[lane];
  clock.resize(clocks_.size());
  return clock;
}

OrderChecker::Clock OrderChecker::point(std::string_view lane) {
  std::lock_guard lock(mutex_);
  return clock_of(lane_of(lane));
}

void OrderChecker::join(std::string_view lane, const Clock& clock) {
  std::lock_guard lock(mutex_);
  auto& mine = clock_of(lane_of(lane));
  for (std::size_t other = 0; other < clock.size(); ++other) mine[other] = std::max(mine[other], clock[other]);
}

void OrderChecker::join_all(const Clock& clock) {
  std::lock_guard lock(mutex_);
  for (std::size_t lane = 0; lane < clocks_.size(); ++lane) {
    auto& mine = clock_of(static_cast<int>(lane));
    for (std::size_t other = 0; other < clock.size(); ++other) mine[other] = std::max(mine[other], clock[other]);
  }
}

bool OrderChecker::before(const Access& earlier, int lane) {
  return earlier.lane < 0 || earlier.lane == lane || clock_of(lane)[earlier.lane] >= earlier.number;
}

void OrderChecker::check(const Access& earlier, const Access& later, const char* earlier_did, const char* later_does) {
  if (before(earlier, later.lane)) return;
  if (++found_ > 1) return;
  first_ = fmt::format("{} {} memory that {} {}, and nothing makes one wait for the other", names_[later.name],
                       later_does, names_[earlier.name], earlier_did);
}

void OrderChecker::split(const char* at) {
  auto after = cells_.upper_bound(at);
  if (after == cells_.begin()) return;
  auto cell = std::prev(after);
  if (cell->first == at || cell->second.end <= at) return;
  auto rest = cell->second;
  cell->second.end = at;
  cells_.emplace_hint(after, at, std::move(rest));
}

void OrderChecker::touch(ByteRange range, const Access& access, bool write) {
  if (range.begin == range.end) return;
  split(range.begin);
  split(range.end);
  auto first = cells_.lower_bound(range.begin), last = cells_.lower_bound(range.end);
  for (auto cell = first; cell != last; ++cell) {
    check(cell->second.write, access, "writes", write ? "writes" : "reads");
    if (!write) continue;
    for (auto& read : cell->second.reads) check(read, access, "reads", "writes");
  }
  if (write) {
    cells_.erase(first, last);
    cells_.emplace(range.begin, Cell{range.end, access, {}});
    return;
  }
  auto* next = range.begin;
  for (auto cell = first; cell != last; ++cell) {
    if (next < cell->first) cells_.emplace_hint(cell, next, Cell{cell->first, {}, {access}});
    auto& reads = cell->second.reads;
    auto mine = std::ranges::find(reads, access.lane, &Access::lane);
    if (mine == reads.end()) {
      reads.push_back(access);
    } else {
      *mine = access;
    }
    next = cell->second.end;
  }
  if (next < range.end) cells_.emplace_hint(last, next, Cell{range.end, {}, {access}});
}

void OrderChecker::access(std::string_view lane, const Operation& operation) {
  std::lock_guard lock(mutex_);
  auto number = lane_of(lane);
  Access access{number, ++clock_of(number)[number], name_of(lane, operation)};
  for (auto& range : operation.reads) touch(range, access, false);
  for (auto& range : operation.writes) touch(range, access, true);
}

void OrderChecker::retire(std::string_view lane, std::string_view how, ByteRange range) {
  std::lock_guard lock(mutex_);
  auto number = lane_of(lane);
  Access access{number, ++clock_of(number)[number], name_of(lane, {.name = std::string(how)})};
  touch(range, access, true);
  cells_.erase(cells_.lower_bound(range.begin), cells_.lower_bound(range.end));
}

std::string OrderChecker::borrow_lane() {
  std::lock_guard lock(mutex_);
  if (free_lanes_.empty()) return fmt::format("in flight {}", ++borrowed_);
  auto lane = std::move(free_lanes_.back());
  free_lanes_.pop_back();
  return lane;
}

void OrderChecker::give_back_lane(const std::string& lane) {
  std::lock_guard lock(mutex_);
  free_lanes_.push_back(lane);
}

std::string OrderChecker::found_text() const {
  return found_ < 2 ? first_ : fmt::format("{} ({} more)", first_, found_ - 1);
}

void OrderChecker::raise() {
  std::lock_guard lock(mutex_);
  if (found_ > 0) throw LogicError("order: " + found_text());
}

std::string OrderChecker::take_found() {
  std::lock_guard lock(mutex_);
  auto text = found_text();
  found_ = 0;
  first_.clear();
  return text;
}

void note_write(std::string_view how, const at::Tensor& tensor) {
  auto* checker = OrderChecker::active();
  if (checker) checker->access(kComputeLane, {.name = std::string(how), .writes = {range_of(tensor)}});
}

}  // namespace meshard
