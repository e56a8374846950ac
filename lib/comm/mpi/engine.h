#pragma once
// How a rank waits for MPI, and how its operations move on while it computes. One engine per World: all operations of a
// rank go through it. comm/DESIGN.md section 3.
//
// An operation is a small state machine of nonblocking MPI calls. Whoever waits for one operation drives all of them,
// because a peer may wait for them in another order and need the later messages of this rank.
//
// A waiting rank tests briefly at full speed, then offers its core to others, then sleeps in growing steps: with more
// ranks than cores it must not take the core that a computing rank needs.
//
// With start_thread() a thread drives the operations while no one waits. MPI is then used by two threads, one at a
// time: whoever calls it holds the engine's lock.

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/recorder.h"

namespace meshard {

struct MpiChannel;

/// One collective of this rank. Its buffers live as long as it does.
class MpiOperation {
 public:
  virtual ~MpiOperation() = default;
  /// Local. Goes on as far as it gets without blocking. True once complete; not called again then, nor after it has
  /// thrown. Throws CommError.
  virtual bool step() = 0;

 private:
  friend class MpiEngine;
  const MpiChannel* channel_ = nullptr;
  bool active_ = false;
  double finished_ = 0.0;  ///< steady_seconds()
  std::exception_ptr error_;
  CallRecord call_;
};

class MpiEngine {
 public:
  /// Local. `recorder` must live longer.
  explicit MpiEngine(Recorder& recorder);
  /// Local. Ends the thread.
  ~MpiEngine();
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;

  /// Local. The lock that is held around every call of MPI while the thread may run. Not to be taken while an operation
  /// is waited for.
  std::mutex& mutex() { return mutex_; }

  /// Local. From now on, or no longer, a thread drives the operations. What an operation throws in it is thrown by
  /// finish().
  void start_thread();
  void stop_thread();

  /// Local, under the lock. The engine drives it until it is complete or removed. `channel` is what it communicates
  /// through.
  void add(MpiOperation& operation, const MpiChannel& channel);
  /// Local. Drives all operations until `operation` is complete. Throws what a step of it threw.
  void finish(MpiOperation& operation);
  /// Local. Whether it needs no more driving: complete, or failed.
  bool finished(const MpiOperation& operation);
  /// Local. The record of an operation's call, for the report of its completion. From the thread that waits.
  void set_call(MpiOperation& operation, const CallRecord& call) { operation.call_ = call; }
  /// Local. Reports what is complete and was not reported yet to the recorder. From the thread that waits.
  void report();
  void remove(MpiOperation& operation);
  /// Local. Removes all that communicate through a channel which is about to go.
  void remove_all(const MpiChannel& channel);

 private:
  void step_all();
  void run();

  Recorder& recorder_;
  std::mutex mutex_;
  std::vector<MpiOperation*> active_;    ///< in order of issue
  std::vector<MpiOperation*> finished_;  ///< complete, and not reported yet
  int waiting_ = 0;                      ///< callers of finish(): the thread stays out of their way
  bool stop_ = false;
  bool idle_ = false;  ///< the thread sleeps until there is something to do
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace meshard
