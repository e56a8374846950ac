#pragma once
// What runs beside what on a device: lanes, each in order, and the points at which one lane waits for another. All of
// a backend's order is said in these words, so that it can run on a device, on the host of a test, and be checked.
// comm/DESIGN.md section 10.
//
//   timeline.wait(Lane::Gather, timeline.mark(Lane::Compute));    // not before what computes has come to here
//   auto done = timeline.enqueue(Lane::Gather, operation, body);  // returns at once
//   timeline.wait(Lane::Compute, done);                           // what computes from here on sees the result

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/timeline/lane.h"
#include "comm/timeline/order_checker.h"

namespace meshard {

/// A point of a lane. Made by a Timeline, and outlived by it.
class Token : public std::enable_shared_from_this<Token> {
 public:
  virtual ~Token() = default;
  /// Local. Any thread. The lane has passed the point. Throws CommError if the device has failed.
  virtual bool done() const = 0;
  /// Local. Seconds on the device from one point to another; both are done.
  virtual double seconds_since(const Token& start) const = 0;

 private:
  friend class Timeline;
  std::vector<at::Tensor> held_;
  std::vector<std::shared_ptr<Token>> before_;  ///< what the lane waited for: held as long as this is
  OrderChecker::Clock clock_;
};
using TokenPtr = std::shared_ptr<Token>;

class Timeline {
 public:
  /// Puts the work on the lane. `stream` is the lane's own handle (of CUDA a cudaStream_t). Nothing may be allocated in
  /// it that is used elsewhere.
  using Body = std::function<void(void* stream)>;

  virtual ~Timeline() = default;
  virtual at::Device device() const = 0;
  /// Local. Makes the device that of the calling thread.
  virtual void enter_thread() {}

  /// Local. The point that the lane has come to with all that was put on it.
  TokenPtr mark(Lane lane);

  /// Local. Runs `body`, which puts work on the lane, after all that the lane holds. The tensors of `operation` are
  /// held until the compute lane has been made to wait for the token, itself or by way of other lanes. The token is the
  /// point after it. Throws what `body` throws.
  TokenPtr enqueue(Lane lane, const Operation& operation, const Body& body);

  /// Local. What is put on the lane from now on waits for the token. The compute lane is that of the calling thread.
  virtual void wait(Lane lane, const TokenPtr& token);

  /// Local. Returns once the token is done. Counted: each one leaves the device without work.
  void host_wait(const TokenPtr& token);
  std::int64_t host_waits() const { return host_waits_; }

 protected:
  virtual TokenPtr do_mark(Lane lane) = 0;
  virtual TokenPtr do_enqueue(Lane lane, const Operation& operation, const Body& body) = 0;
  virtual void do_wait(Lane lane, Token& token) = 0;
  virtual void do_host_wait(Token& token) = 0;

 private:
  static void let_go(Token& token);

  std::vector<TokenPtr> waited_[kLaneCount];  ///< by each lane since its last operation
  std::int64_t host_waits_ = 0;
};

}  // namespace meshard
