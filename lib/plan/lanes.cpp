#include "plan/lanes.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace meshard {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// One lane at a time: what is next on it, and how much of that is left.
struct Head {
  std::vector<OperationId> queue;
  std::size_t next = 0;
  bool running = false;
  double fixed_left = 0.0, transfer_left = 0.0;
};

class Lanes {
 public:
  explicit Lanes(const std::vector<StepOperation>& operations)
      : operations_(operations), spans_(operations.size()), done_(operations.size(), 0) {
    for (OperationId id = 0; id < std::ssize(operations); ++id) {
      for (auto before : operations[id].after) {
        if (before >= id) throw LogicError("an operation waits for one that is issued later");
      }
      heads_[static_cast<std::size_t>(operations[id].lane)].queue.push_back(id);
    }
  }

  std::vector<Span> run() {
    for (;;) {
      start_ready();
      auto step = time_to_next_end();
      if (step == kNever) return std::move(spans_);
      advance(step);
    }
  }

 private:
  const StepOperation& current(const Head& head) const { return operations_[head.queue[head.next]]; }

  bool ready(const StepOperation& operation) const {
    return std::ranges::all_of(operation.after, [&](auto id) { return id == kNothing || done_[id]; });
  }

  void start_ready() {
    for (auto& head : heads_) {
      if (head.running || head.next == head.queue.size() || !ready(current(head))) continue;
      head.running = true;
      head.fixed_left = current(head).fixed_s;
      head.transfer_left = current(head).transfer_s;
      spans_[head.queue[head.next]].begin = now_;
    }
  }

  /// How many operations share the link of `operation`.
  double sharers(const StepOperation& operation) const {
    if (operation.link == LinkKind::None) return 1.0;
    return static_cast<double>(std::ranges::count_if(heads_, [&](const Head& head) {
      return head.running && head.fixed_left <= 0.0 && current(head).link == operation.link;
    }));
  }

  double time_to_next_end() const {
    auto next = kNever;
    for (auto& head : heads_) {
      if (!head.running) continue;
      next = std::min(next, head.fixed_left > 0.0 ? head.fixed_left : head.transfer_left * sharers(current(head)));
    }
    return next;
  }

  void advance(double step) {
    std::array<double, kLaneNames.size()> moved{};
    for (std::size_t lane = 0; lane < heads_.size(); ++lane) {
      auto& head = heads_[lane];
      if (head.running && head.fixed_left <= 0.0) moved[lane] = step / sharers(current(head));
    }
    now_ += step;
    for (std::size_t lane = 0; lane < heads_.size(); ++lane) {
      auto& head = heads_[lane];
      if (!head.running) continue;
      if (head.fixed_left > 0.0) {
        head.fixed_left = left_of(head.fixed_left, step);
      } else {
        head.transfer_left = left_of(head.transfer_left, moved[lane]);
      }
      if (head.fixed_left > 0.0 || head.transfer_left > 0.0) continue;
      auto id = head.queue[head.next++];
      spans_[id].end = now_;
      done_[id] = 1;
      head.running = false;
    }
  }

  /// What rounding leaves of a duration that has passed is nothing.
  static double left_of(double before, double passed) {
    auto left = before - passed;
    return left < 1e-12 * before ? 0.0 : left;
  }

  const std::vector<StepOperation>& operations_;
  std::vector<Span> spans_;
  std::vector<char> done_;
  std::array<Head, kLaneNames.size()> heads_;
  double now_ = 0.0;
};

}  // namespace

std::vector<Span> run_lanes(const std::vector<StepOperation>& operations) {
  return Lanes(operations).run();
}

}  // namespace meshard
