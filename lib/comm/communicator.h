#pragma once
// One axis of a mesh as something to communicate over. Two backends implement it: `mpi` (host tensors) and `nccl`
// (device tensors). The public functions check arguments, enter the call in the ledger and in the watchdog's ring, and
// hand over to the backend; so every backend is checked, counted and watched alike. DESIGN.md section 2.
//
// Every operation returns a Work. The tensors must stay untouched until Work::wait() has returned; the Work holds
// references to them. Works of one communicator may be waited for in any order. All ranks of the axis must issue the
// same operations in the same order. An axis of size 1 issues nothing and has no ledger entry: the result is a local
// copy. A communicator must be destroyed before its World, and after its Works.
//
// Reductions over mpi have a fixed order, rank 0 to n-1, in fp32 (fp64 and integers in their own type): a repeat gives
// the same bits, and all ranks hold the same bits. nccl: the same bits on all ranks and, on the same devices, in every
// repeat; the order and, for bf16, the intermediate rounding are NCCL's.
// Dtypes: fp32, bf16, fp64, int32, int64, uint8; Average only of floating ones. Tensors are contiguous, of any shape
// (what counts is numel) and of one dtype and device per call: ShapeError otherwise, before anything is sent.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/timeline/order_checker.h"

namespace meshard {

class Recorder;

/// The axis between the groups of ranks that shard a model, where it is replicated: the slow one.
inline constexpr std::string_view kOuterAxis = "dp_outer";

enum class ReduceOp { Sum, Average, Max };

/// Who asks, for the watchdog's dump and the ledger. `control` traffic (flags, norms, hashes) is kept out of the
/// per-step byte counts.
struct CallInfo {
  std::string unit;
  bool control = false;
};

/// One call in the watchdog's ring, from issue to completion.
struct CallRecord {
  std::uint64_t sequence = 0;  ///< of this rank, over all axes, from 1
  std::string_view operation;
  std::string axis;
  bool control = false;
  double entered = 0.0;  ///< steady_seconds()
  double since = 0.0;    ///< the same: when its issue, and later the wait for it, began
};

/// A pending operation. Waiting is idempotent; a Work that is destroyed unwaited waits in its destructor. While an
/// exception unwinds the stack it does not wait, as the peers may never come: the operation and its tensors are leaked.
class Work {
 public:
  class Pending {
   public:
    virtual ~Pending() = default;
    /// Local. Blocks until done (mpi) or makes the current stream wait (nccl). Throws CommError.
    virtual void wait() = 0;
    /// Local. True if wait() returning means that the operation is complete (mpi): the time in it, and in the issue,
    /// is exposed. Where it only queues a wait (nccl), the device knows what was exposed.
    virtual bool complete_after_wait() const { return true; }
    /// Local. The call's record. The backend reports its completion to the Recorder once it knows of it.
    virtual void issued(const CallRecord& call) = 0;
  };

  Work() = default;  ///< already complete
  explicit Work(std::unique_ptr<Pending> pending) : pending_(std::move(pending)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other);
  ~Work();

  /// Local. Returns once the result may be used (nccl: by the current stream). Throws CommError.
  void wait();
  bool pending() const { return pending_ != nullptr; }

 private:
  friend class Communicator;
  std::unique_ptr<Pending> pending_;
  Recorder* recorder_ = nullptr;
  CallRecord call_;
  std::string lane_;  ///< of its own, for the checker of order
  std::vector<at::Tensor> held_;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// The name of the axis: dp_outer, dp_shard, world, expert_dp, expert or control.
  const std::string& axis() const { return axis_; }
  /// World ranks of the members, in order.
  std::span<const int> members() const { return members_; }

  /// Collective over this axis. `full` [n * k] = the concatenation of every rank's `shard` [k], in rank order; `shard`
  /// may be this rank's slice of `full` (in place). ShapeError if sizes, dtypes or contiguity do not fit.
  Work all_gather(at::Tensor full, at::Tensor shard, const CallInfo& info = {});

  /// Collective over this axis. `shard` [k] = slice `rank` of the reduction of every rank's `full` [n * k]; `shard` may
  /// be this rank's slice of `full`. Sums in fp32 whatever the dtype; Average divides that sum by n before rounding.
  /// Max of a NaN is NaN.
  Work reduce_scatter(at::Tensor shard, at::Tensor full, ReduceOp op, const CallInfo& info = {});

  /// Collective over this axis. In place; any numel. Computed as a reduce-scatter and an all-gather: the same bits on
  /// every rank.
  Work all_reduce(at::Tensor tensor, ReduceOp op, const CallInfo& info = {});

  /// Collective over this axis. In place, from rank `root`.
  Work broadcast(at::Tensor tensor, int root, const CallInfo& info = {});

  /// Collective over this axis. Slice i of `in` [n * k] goes to rank i, and comes to lie in slice `rank` of its `out`.
  /// The two may not overlap (here and below).
  Work all_to_all(at::Tensor out, at::Tensor in, const CallInfo& info = {});

  /// Collective over this axis. Rows (dimension 0) of `in` go out by `in_rows[i]` to rank i, in order; `out_rows[i]`
  /// rows of `out` come from rank i. Zero rows are legal. Sums of the rows must fit the tensors.
  Work all_to_all_v(at::Tensor out, at::Tensor in, std::span<const std::int64_t> out_rows,
                    std::span<const std::int64_t> in_rows, const CallInfo& info = {});

  /// Collective over this axis. Returns once every rank has entered (nccl: once the device has).
  void barrier(const CallInfo& info = {});

 protected:
  Communicator(std::string axis, int rank, std::vector<int> members, Recorder& recorder);

  Recorder& recorder() const { return recorder_; }
  /// What the call that is being issued is, and which bytes it reads and writes.
  const Operation& operation() const { return operation_; }

  virtual Work do_all_gather(at::Tensor full, at::Tensor shard) = 0;
  virtual Work do_reduce_scatter(at::Tensor shard, at::Tensor full, ReduceOp op) = 0;
  virtual Work do_all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  virtual Work do_broadcast(at::Tensor tensor, int root) = 0;
  virtual Work do_all_to_all(at::Tensor out, at::Tensor in) = 0;
  virtual Work do_all_to_all_v(at::Tensor out, at::Tensor in, std::vector<std::int64_t> out_rows,
                               std::vector<std::int64_t> in_rows) = 0;
  virtual Work do_barrier() = 0;

 private:
  struct Touches {
    std::vector<ByteRange> reads, writes;
    std::vector<at::Tensor> tensors;  ///< that the backend may let go of before the wait
  };
  CallRecord enter(std::string_view operation, std::int64_t bytes, const CallInfo& info, Touches touches);
  Work record(Work work, CallRecord call);
  void check(std::string_view operation, const at::Tensor& tensor) const;
  void check_pair(std::string_view operation, const at::Tensor& full, const at::Tensor& shard) const;
  void check_apart(std::string_view operation, const at::Tensor& out, const at::Tensor& in) const;

  std::string axis_;
  int rank_;
  int size_;
  std::vector<int> members_;
  Recorder& recorder_;
  Operation operation_;
};

}  // namespace meshard
