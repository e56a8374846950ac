#pragma once
// Communicator over NCCL, for device tensors; and the DeviceBackend of a build with CUDA.
//
// Two streams per device carry all axes: one for gathers (all_gather, broadcast, all_to_all), one for reductions
// (reduce_scatter, all_reduce, barrier). An operation starts after what its caller's stream holds at its issue;
// Work::wait() makes the stream that is current then wait for it, and lets go of the tensors: their memory may be used
// again by that stream, so wait on the stream that they are used on.

#include <c10/cuda/CUDAStream.h>

#include <deque>
#include <memory>
#include <mutex>
#include <set>

#include "comm/nccl/cuda_support.h"
#include "comm/nccl/device_backend.h"
#include "comm/nccl/support.h"

namespace meshard {

/// The collectives that the device has not finished. Entered by the thread that communicates, looked at by the
/// watchdog's.
class InFlight {
 public:
  struct Entry {
    CallRecord call;
    std::shared_ptr<CudaEvent> start, end;
    Recorder* recorder = nullptr;
  };

  /// Local. Adds one, and reports those to their recorders that are done.
  void add(Entry entry);
  /// Local. Any thread. Sequence number of the first one that is not done; 0: none.
  std::uint64_t oldest() const;

 private:
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;  ///< in order of issue
};

class NcclBackend : public DeviceBackend {
 public:
  NcclBackend(int index, std::chrono::milliseconds timeout);

  at::Device device() const override { return at::Device(at::kCUDA, gathers_.device_index()); }
  std::unique_ptr<Communicator> make_communicator(MpiComm comm, MPI_Comm world, const std::string& axis,
                                                  Recorder& recorder) override;
  std::uint64_t oldest_unfinished() override;

  cudaStream_t gathers() const { return gathers_.stream(); }
  cudaStream_t reductions() const { return reductions_.stream(); }
  InFlight& in_flight() { return in_flight_; }

  /// Local. A communicator that the watchdog is to look after, until it is forgotten.
  void watch(NcclComm* comm);
  void forget(NcclComm* comm);

 private:
  std::chrono::milliseconds timeout_;
  c10::cuda::CUDAStream gathers_, reductions_;
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
  Work launch(std::string_view call, cudaStream_t stream, std::vector<at::Tensor> tensors, const Issue& issue,
              bool blocks = false);

  MpiComm comm_;
  NcclBackend& backend_;
  NcclComm nccl_;
};

}  // namespace meshard
