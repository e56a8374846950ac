#pragma once
// A device in the memory of the host, for tests: its lanes do what they were given as late as they may, or early at
// random, and the bytes that an operation will write are spoiled (0xff: a NaN in every floating dtype) at its issue. So
// who does not wait for a result sees that it is not there, every time.

#include <array>
#include <deque>
#include <optional>
#include <random>

#include "comm/timeline/timeline.h"

/// What a body puts on a lane.
class LaneTask {
 public:
  virtual ~LaneTask() = default;
  /// Its turn has come: what it reads may be read.
  virtual void start() {}
  /// Goes on without blocking; true once its results are written.
  virtual bool step() = 0;
};

class HostTimeline : public meshard::Timeline {
 public:
  /// `early`: the seed of a generator that lets lanes run ahead of need; none: nothing runs before it is waited for.
  explicit HostTimeline(std::optional<unsigned> early);
  ~HostTimeline() override;

  at::Device device() const override { return at::Device(at::kCPU); }

  /// Local. For bodies: puts a task on the lane whose handle this is.
  static void put(void* stream, std::unique_ptr<LaneTask> task);
  static void put(void* stream, std::function<void()> work);

  /// Local. Called again and again while the host waits for a lane, before it looks for progress.
  void on_idle(std::function<void()> idle) { idle_ = std::move(idle); }
  /// Local. The host waits for something else, for which other ranks may need what lies on the lanes.
  void idle();

  /// A fault to be found: the next wait of `waiting` for a point of `awaited` does not happen.
  void drop_next_wait(meshard::Lane waiting, meshard::Lane awaited) { dropped_ = {waiting, awaited}; }
  bool dropped_it() const { return !dropped_; }
  void wait(meshard::Lane lane, const meshard::TokenPtr& token) override;

 protected:
  meshard::TokenPtr do_mark(meshard::Lane lane) override;
  meshard::TokenPtr do_enqueue(meshard::Lane lane, const meshard::Operation& operation, const Body& body) override;
  void do_wait(meshard::Lane lane, meshard::Token& token) override;
  void do_host_wait(meshard::Token& token) override;

 private:
  class HostToken;
  struct Command;
  struct HostLane;
  struct Unfinished;

  void advance(int lane, const HostToken* until, int most = 1'000'000);
  void step_started();
  void start_all();
  void run_until(HostToken& token);
  void run_early();
  bool is_touched(meshard::ByteRange range);

  std::array<std::unique_ptr<HostLane>, meshard::kLaneCount> lanes_;
  std::vector<Unfinished> unfinished_;
  std::optional<std::mt19937> early_;
  std::function<void()> idle_ = [] {};
  std::optional<std::pair<meshard::Lane, meshard::Lane>> dropped_;
  bool progress_ = false;
  double idle_since_ = 0.0;
};
