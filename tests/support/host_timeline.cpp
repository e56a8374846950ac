#include "support/host_timeline.h"

#include <unistd.h>

#include <cstring>

#include "comm/ledger.h"

using namespace meshard;

namespace {

/// Another rank may wait for what this one has not begun: what may begin does, after this time without progress.
constexpr double kPatienceSeconds = 0.02;

bool overlap(ByteRange a, ByteRange b) {
  return a.begin < b.end && b.begin < a.end;
}

/// What of `range` lies outside all of `others`.
std::vector<ByteRange> without(ByteRange range, const std::vector<ByteRange>& others) {
  std::vector<ByteRange> left{range};
  for (auto& other : others) {
    std::vector<ByteRange> next;
    for (auto& each : left) {
      if (!overlap(each, other)) {
        next.push_back(each);
        continue;
      }
      if (each.begin < other.begin) next.push_back({each.begin, other.begin});
      if (other.end < each.end) next.push_back({other.end, each.end});
    }
    left = std::move(next);
  }
  return left;
}

void spoil(ByteRange range) {
  std::memset(const_cast<char*>(range.begin), 0xff, range.end - range.begin);
}

class Closure : public LaneTask {
 public:
  explicit Closure(std::function<void()> work) : work_(std::move(work)) {}
  bool step() override {
    work_();
    return true;
  }

 private:
  std::function<void()> work_;
};

}  // namespace

class HostTimeline::HostToken : public Token {
 public:
  explicit HostToken(int lane) : lane(lane) {}
  bool done() const override { return done_; }
  double seconds_since(const Token& start) const override {
    return seconds_ - static_cast<const HostToken&>(start).seconds_;
  }
  void pass() {
    seconds_ = steady_seconds();
    done_ = true;
  }

  const int lane;

 private:
  std::atomic<bool> done_ = false;
  double seconds_ = 0.0;
};

/// One of the three: a task, a wait for a token, a token to be passed.
struct HostTimeline::Command {
  std::unique_ptr<LaneTask> task;
  std::shared_ptr<HostToken> wait, mark;
  bool started = false;
};

struct HostTimeline::HostLane {
  std::deque<Command> commands;
};

struct HostTimeline::Unfinished {
  std::vector<ByteRange> ranges;
  TokenPtr end;
};

HostTimeline::HostTimeline(std::optional<unsigned> early) {
  for (auto& lane : lanes_) lane = std::make_unique<HostLane>();
  if (early) early_.emplace(*early);
}

HostTimeline::~HostTimeline() = default;

void HostTimeline::put(void* stream, std::unique_ptr<LaneTask> task) {
  static_cast<HostLane*>(stream)->commands.push_back({.task = std::move(task)});
}

void HostTimeline::put(void* stream, std::function<void()> work) {
  put(stream, std::make_unique<Closure>(std::move(work)));
}

void HostTimeline::advance(int lane, const HostToken* until, int most) {
  auto& commands = lanes_[lane]->commands;
  for (; !commands.empty() && most > 0; --most) {
    auto& head = commands.front();
    if (head.wait && !head.wait->done()) {
      advance(head.wait->lane, head.wait.get());
      if (!head.wait->done()) return;
    }
    if (head.task) {
      if (!std::exchange(head.started, true)) {
        head.task->start();
        progress_ = true;
      }
      if (!head.task->step()) return;
    }
    auto mark = std::move(head.mark);
    commands.pop_front();
    progress_ = true;
    if (mark) mark->pass();
    if (mark && mark.get() == until) return;
  }
}

void HostTimeline::step_started() {
  for (auto& lane : lanes_) {
    if (lane->commands.empty() || !lane->commands.front().started) continue;
    if (!lane->commands.front().task->step()) continue;
    lane->commands.pop_front();
    progress_ = true;
  }
}

void HostTimeline::start_all() {
  for (int lane = 0; lane < kLaneCount; ++lane) advance(lane, nullptr);
}

void HostTimeline::idle() {
  auto now = steady_seconds();
  progress_ = false;
  idle_();
  step_started();
  if (progress_ || idle_since_ == 0.0) idle_since_ = now;
  if (now - idle_since_ > kPatienceSeconds) start_all();
}

void HostTimeline::run_until(HostToken& token) {
  idle_since_ = 0.0;
  for (auto since = steady_seconds(); !token.done();) {
    progress_ = false;
    idle_();
    advance(token.lane, &token);
    step_started();
    if (progress_) since = steady_seconds();
    if (token.done()) break;
    if (steady_seconds() - since > kPatienceSeconds) start_all();
    if (!progress_) ::usleep(50);
  }
}

void HostTimeline::run_early() {
  if (!early_) return;
  for (int lane = 0; lane < kLaneCount; ++lane) {
    if ((*early_)() % 3 == 0) advance(lane, nullptr, 1 + static_cast<int>((*early_)() % 8));
  }
}

bool HostTimeline::is_touched(ByteRange range) {
  std::erase_if(unfinished_, [](const Unfinished& each) { return each.end->done(); });
  for (auto& each : unfinished_) {
    for (auto& touched : each.ranges) {
      if (overlap(touched, range)) return true;
    }
  }
  return false;
}

TokenPtr HostTimeline::do_mark(Lane lane) {
  auto number = static_cast<int>(lane);
  auto token = std::make_shared<HostToken>(number);
  // Computation is what the host does: it is always up to date.
  if (lane == Lane::Compute) {
    token->pass();
  } else {
    lanes_[number]->commands.push_back({.mark = token});
  }
  return token;
}

TokenPtr HostTimeline::do_enqueue(Lane lane, const Operation& operation, const Body& body) {
  auto number = static_cast<int>(lane);
  for (auto& written : operation.writes) {
    for (auto& range : without(written, operation.reads)) {
      // What others on their way still need of it is spoiled when they are through.
      if (is_touched(range)) {
        put(lanes_[number].get(), [range] { spoil(range); });
      } else {
        spoil(range);
      }
    }
  }
  body(lanes_[number].get());
  auto token = std::make_shared<HostToken>(number);
  lanes_[number]->commands.push_back({.mark = token});
  if (lane == Lane::Compute) run_until(*token);
  auto ranges = operation.reads;
  ranges.insert(ranges.end(), operation.writes.begin(), operation.writes.end());
  unfinished_.push_back({std::move(ranges), token});
  run_early();
  return token;
}

void HostTimeline::wait(Lane lane, const TokenPtr& token) {
  if (dropped_ == std::pair(lane, static_cast<Lane>(static_cast<const HostToken&>(*token).lane))) {
    dropped_.reset();
    return;
  }
  Timeline::wait(lane, token);
}

void HostTimeline::do_wait(Lane lane, Token& token) {
  auto& awaited = static_cast<HostToken&>(token);
  if (awaited.done()) return;
  if (lane == Lane::Compute) return run_until(awaited);
  auto shared = std::static_pointer_cast<HostToken>(awaited.shared_from_this());
  lanes_[static_cast<int>(lane)]->commands.push_back({.wait = std::move(shared)});
  run_early();
}

void HostTimeline::do_host_wait(Token& token) {
  run_until(static_cast<HostToken&>(token));
}
