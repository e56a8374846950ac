#pragma once
// One axis of a mesh as something to communicate over. Two backends implement it: `mpi` (host tensors) and `nccl`
// (device tensors). The public functions check arguments, enter the call in the ledger and in the watchdog's ring, and
// hand over to the backend; so every backend is checked, counted and watched alike.
//
// Every operation returns a Work. The tensors must stay alive and untouched until Work::wait() has returned; the Work
// holds references to them. Works of one communicator may be waited for in any order. All ranks of the axis must issue
// the same operations in the same order. An axis of size 1 issues nothing and has no ledger entry: the result is a
// local copy.
//
// Reductions have a fixed order, rank 0 to n-1, in fp32 (fp64 and integers in their own type): a repeat gives the same
// bits, and all ranks hold the same bits. Dtypes: fp32, bf16, fp64, int32, int64, uint8.

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

class Recorder;

enum class ReduceOp { Sum, Average, Max };

/// Who asks, for the watchdog's dump and the ledger. `control` traffic (flags, norms, hashes) is kept out of the
/// per-step byte counts.
struct CallInfo {
  std::string unit;
  bool control = false;
};

/// A pending operation. Waiting is idempotent; a Work that is destroyed unwaited waits in its destructor.
class Work {
 public:
  class Pending {
   public:
    virtual ~Pending() = default;
    /// Local. Blocks until done (mpi) or makes the current stream wait (nccl). Throws CommError.
    virtual void wait() = 0;
  };

  Work() = default;  ///< already complete
  explicit Work(std::unique_ptr<Pending> pending) : pending_(std::move(pending)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other);
  ~Work();

  void wait();
  bool pending() const { return pending_ != nullptr; }

 private:
  std::unique_ptr<Pending> pending_;
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
  Work reduce_scatter(at::Tensor shard, at::Tensor full, ReduceOp op, const CallInfo& info = {});

  /// Collective over this axis. In place; any numel. Computed as a reduce-scatter and an all-gather: the same bits on
  /// every rank.
  Work all_reduce(at::Tensor tensor, ReduceOp op, const CallInfo& info = {});

  /// Collective over this axis. In place, from rank `root`.
  Work broadcast(at::Tensor tensor, int root, const CallInfo& info = {});

  /// Collective over this axis. Slice i of `in` [n * k] goes to rank i, and comes to lie in slice `rank` of its `out`.
  Work all_to_all(at::Tensor out, at::Tensor in, const CallInfo& info = {});

  /// Collective over this axis. Rows (dimension 0) of `in` go out by `in_rows[i]` to rank i, in order; `out_rows[i]`
  /// rows of `out` come from rank i. Zero rows are legal. Sums of the rows must fit the tensors.
  Work all_to_all_v(at::Tensor out, at::Tensor in, std::span<const std::int64_t> out_rows,
                    std::span<const std::int64_t> in_rows, const CallInfo& info = {});

  /// Collective over this axis. Returns once every rank has entered (nccl: once the device has).
  void barrier(const CallInfo& info = {});

 protected:
  Communicator(std::string axis, int rank, std::vector<int> members, Recorder& recorder);

  virtual Work do_all_gather(at::Tensor full, at::Tensor shard) = 0;
  virtual Work do_reduce_scatter(at::Tensor shard, at::Tensor full, ReduceOp op) = 0;
  virtual Work do_all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  virtual Work do_broadcast(at::Tensor tensor, int root) = 0;
  virtual Work do_all_to_all(at::Tensor out, at::Tensor in) = 0;
  virtual Work do_all_to_all_v(at::Tensor out, at::Tensor in, std::vector<std::int64_t> out_rows,
                               std::vector<std::int64_t> in_rows) = 0;
  virtual void do_barrier() = 0;

 private:
  std::string axis_;
  int rank_;
  int size_;
  std::vector<int> members_;
  Recorder& recorder_;
};

}  // namespace meshard
