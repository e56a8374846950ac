#pragma once
// Communicator over NCCL, for device tensors; and the DeviceBackend that makes them. What runs beside what is said to a
// Timeline alone, so the same code runs on a device and, over a stand-in for NCCL, on the host of a test.
//
// A lane carries all axes: gather (all_gather, broadcast), reduce (reduce_scatter, all_reduce, barrier), exchange
// (all_to_all, all_to_all_v: what a layer computes next waits for it, so it must not queue behind a gather that was
// issued ahead); and outer everything on dp_outer. An operation starts after what its caller's compute lane holds at
// its issue; Work::wait() makes the compute lane that is current then wait for it, and lets go of the tensors: their
// memory may be used again by that lane, so wait where they are used.
//
// All ranks launch the same operations in the same order over all axes together, as they run the same program on the
// same model (comm/DESIGN.md section 4): NCCL may then run communicators beside each other without a deadlock. Where
// one communicator is used from two lanes (dp_outer never is; the world's axis may be), NCCL itself runs its operations
// one after the other, which is allowed and costs overlap only.

#include <deque>
#include <memory>
#include <mutex>
#include <set>

#include "comm/ledger.h"
#include "comm/nccl/device_backend.h"
#include "comm/nccl/support.h"
#include "comm/timeline/timeline.h"

namespace meshard {

/// One collective, from its issue until it is reported.
struct Flight {
  CallRecord call;
  TokenPtr start, end;               ///< on its lane
  TokenPtr before_wait, after_wait;  ///< on the compute lane; none before it is waited for
  Recorder* recorder = nullptr;
};

/// The collectives that were not reported to their recorders yet. Entered by the thread that communicates, looked at by
/// the watchdog's.
class InFlight {
 public:
  /// Local. `anchor`: a point that is done now, from which times on the device are counted.
  void begin_at(TokenPtr anchor);
  void add(std::shared_ptr<Flight> flight);
  /// Local. The compute lane was made to wait for it between the two points.
  void waited(Flight& flight, TokenPtr before, TokenPtr after);
  /// Local. Reports those that are done.
  void collect();
  /// Local. Any thread. Sequence number of the first one that is not done; 0: none.
  std::uint64_t oldest() const;

 private:
  CallTimes times_of(const Flight& flight);

  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<Flight>> flights_;  ///< in order of issue
  TokenPtr anchor_;
  double anchor_seconds_ = 0.0;  ///< of it, on the clock of steady_seconds()
};

class NcclBackend : public DeviceBackend {
 public:
  /// Local. Throws CommError if NCCL is not the one that this build needs.
  NcclBackend(std::unique_ptr<Timeline> timeline, std::chrono::milliseconds timeout);

  at::Device device() const override { return timeline_->device(); }
  std::unique_ptr<Communicator> make_communicator(MpiComm comm, MPI_Comm world, const std::string& axis,
                                                  Recorder& recorder) override;
  std::uint64_t oldest_unfinished() override;
  void collect() override { in_flight_.collect(); }

  Timeline& timeline() { return *timeline_; }
  InFlight& in_flight() { return in_flight_; }

  /// Local. A communicator that the watchdog is to look after, until it is forgotten.
  void watch(NcclComm* comm);
  void forget(NcclComm* comm);

 private:
  std::chrono::milliseconds timeout_;
  std::unique_ptr<Timeline> timeline_;
  InFlight in_flight_;
  std::mutex mutex_;
  std::set<NcclComm*> watched_;
};

class NcclCommunicator : public Communicator {
 public:
  /// Collective over `comm`. `backend` and `recorder` must live longer.
  NcclCommunicator(MpiComm comm, MPI_Comm world, const std::string& axis, NcclBackend& backend, Recorder& recorder,
                   std::chrono::milliseconds timeout);
  ~NcclCommunicator() override;

 protected:
  Work do_all_gather(at::Tensor full, at::Tensor shard) override;
  Work do_reduce_scatter(at::Tensor shard, at::Tensor full, ReduceOp op) override;
  Work do_all_reduce(at::Tensor tensor, ReduceOp op) override;
  Work do_broadcast(at::Tensor tensor, int root) override;
  Work do_all_to_all(at::Tensor out, at::Tensor in) override;
  Work do_all_to_all_v(at::Tensor out, at::Tensor in, std::vector<std::int64_t> out_rows,
                       std::vector<std::int64_t> in_rows) override;
  Work do_barrier() override;

 private:
  using Issue = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;
  Lane lane(Lane inner) const;
  Work launch(std::string_view call, Lane lane, std::vector<at::Tensor> tensors, const Issue& issue,
              bool blocks = false);

  MpiComm comm_;
  NcclBackend& backend_;
  NcclComm nccl_;
};

}  // namespace meshard
