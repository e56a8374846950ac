#include "comm/nccl/backend.h"

#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "comm/recorder.h"

namespace meshard {

namespace {

ncclDataType_t nccl_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return ncclFloat32;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kDouble:
      return ncclFloat64;
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    case at::kByte:
      return ncclUint8;
    default:
      throw ShapeError("nccl: not a dtype that travels");
  }
}

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return ncclSum;
    case ReduceOp::Average:
      return ncclAvg;
    case ReduceOp::Max:
      return ncclMax;
  }
  throw LogicError("unknown reduction");
}

/// Sends and receives of an all-to-all: `bytes[i]` with rank i, in rank order.
ncclResult_t exchange(ncclComm_t comm, cudaStream_t stream, char* out, const std::vector<std::int64_t>& out_bytes,
                      const char* in, const std::vector<std::int64_t>& in_bytes) {
  for (std::size_t peer = 0; peer < in_bytes.size(); ++peer) {
    auto result = ncclSuccess;
    if (in_bytes[peer] > 0) result = ncclSend(in, in_bytes[peer], ncclUint8, static_cast<int>(peer), comm, stream);
    if (result != ncclSuccess && result != ncclInProgress) return result;
    if (out_bytes[peer] > 0) result = ncclRecv(out, out_bytes[peer], ncclUint8, static_cast<int>(peer), comm, stream);
    if (result != ncclSuccess && result != ncclInProgress) return result;
    in += in_bytes[peer];
    out += out_bytes[peer];
  }
  return ncclSuccess;
}

std::vector<std::int64_t> bytes_of_rows(std::vector<std::int64_t> rows, const at::Tensor& tensor) {
  auto row = tensor.element_size() * c10::multiply_integers(tensor.sizes().slice(1));
  for (auto& count : rows) count *= row;
  return rows;
}

class NcclPending : public Work::Pending {
 public:
  NcclPending(InFlight::Entry entry, InFlight& in_flight, std::vector<at::Tensor> tensors, bool blocks)
      : entry_(std::move(entry)), in_flight_(in_flight), tensors_(std::move(tensors)), blocks_(blocks) {}

  void wait() override {
    entry_.end->hold_back(c10::cuda::getCurrentCUDAStream());
    while (blocks_ && !entry_.end->done()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  bool complete_after_wait() const override { return false; }
  void issued(const CallRecord& call) override {
    entry_.call = call;
    in_flight_.add(entry_);
  }

 private:
  InFlight::Entry entry_;
  InFlight& in_flight_;
  std::vector<at::Tensor> tensors_;
  bool blocks_;
};

}  // namespace

void InFlight::add(Entry entry) {
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const Entry& each) {
    if (!each.end->done()) return false;
    auto now = steady_seconds();
    each.recorder->complete(each.call, {.begin = now - each.end->seconds_since(*each.start), .end = now});
    return true;
  });
  entries_.push_back(std::move(entry));
}

std::uint64_t InFlight::oldest() const {
  std::lock_guard lock(mutex_);
  auto first = std::find_if(entries_.begin(), entries_.end(), [](const Entry& each) { return !each.end->done(); });
  return first == entries_.end() ? 0 : first->call.sequence;
}

NcclBackend::NcclBackend(int index, std::chrono::milliseconds timeout)
    : timeout_(timeout),
      gathers_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, static_cast<c10::DeviceIndex>(index))),
      reductions_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, static_cast<c10::DeviceIndex>(index))) {
  check_nccl_version();
}

std::unique_ptr<Communicator> NcclBackend::make_communicator(MpiComm comm, MPI_Comm world, const std::string& axis,
                                                             Recorder& recorder) {
  return std::make_unique<NcclCommunicator>(std::move(comm), world, axis, *this, recorder, timeout_);
}

std::uint64_t NcclBackend::oldest_unfinished() {
  c10::cuda::CUDAGuard guard(device());
  {
    std::lock_guard lock(mutex_);
    for (auto comm : watched_) comm->abort_if_failed();
  }
  try {
    return in_flight_.oldest();
  } catch (const CommError&) {
    return 0;  // The device failed: the training thread meets the same error, and can throw it.
  }
}

void NcclBackend::watch(NcclComm* comm) {
  std::lock_guard lock(mutex_);
  watched_.insert(comm);
}

void NcclBackend::forget(NcclComm* comm) {
  std::lock_guard lock(mutex_);
  watched_.erase(comm);
}

NcclCommunicator::NcclCommunicator(MpiComm comm, MPI_Comm world, const std::string& axis, NcclBackend& backend,
                                   Recorder& recorder, std::chrono::milliseconds timeout)
    : Communicator(axis, comm.rank(), comm.members_in(world), recorder),
      comm_(std::move(comm)),
      backend_(backend),
      nccl_(comm_.get(), axis, timeout) {
  backend_.watch(&nccl_);
}

NcclCommunicator::~NcclCommunicator() {
  backend_.forget(&nccl_);
}

Work NcclCommunicator::launch(std::string_view call, cudaStream_t stream, std::vector<at::Tensor> tensors,
                              const Issue& issue, bool blocks) {
  for (auto& tensor : tensors) {
    if (tensor.device() != backend_.device()) {
      throw ShapeError(fmt::format("axis {} is over NCCL: tensors must be on {}, not on {}", axis(),
                                   backend_.device().str(), tensor.device().str()));
    }
  }
  c10::cuda::CUDAGuard guard(backend_.device());
  CudaEvent ready;
  ready.record(c10::cuda::getCurrentCUDAStream());
  ready.hold_back(stream);
  InFlight::Entry entry;
  entry.start = std::make_shared<CudaEvent>();
  entry.end = std::make_shared<CudaEvent>();
  entry.recorder = &recorder();
  entry.start->record(stream);
  nccl_.group(call, [&](ncclComm_t comm) { check_nccl(issue(comm, stream), call, axis()); });
  entry.end->record(stream);
  return Work(std::make_unique<NcclPending>(std::move(entry), backend_.in_flight(), std::move(tensors), blocks));
}

Work NcclCommunicator::do_all_gather(at::Tensor full, at::Tensor shard) {
  return launch("ncclAllGather", backend_.gathers(), {full, shard}, [&](ncclComm_t comm, cudaStream_t stream) {
    return ncclAllGather(shard.const_data_ptr(), full.data_ptr(), shard.numel(), nccl_type(full), comm, stream);
  });
}

Work NcclCommunicator::do_reduce_scatter(at::Tensor shard, at::Tensor full, ReduceOp op) {
  return launch("ncclReduceScatter", backend_.reductions(), {shard, full}, [&](ncclComm_t comm, cudaStream_t stream) {
    return ncclReduceScatter(full.const_data_ptr(), shard.data_ptr(), shard.numel(), nccl_type(full), nccl_op(op), comm,
                             stream);
  });
}

Work NcclCommunicator::do_all_reduce(at::Tensor tensor, ReduceOp op) {
  return launch("ncclAllReduce", backend_.reductions(), {tensor}, [&](ncclComm_t comm, cudaStream_t stream) {
    return ncclAllReduce(tensor.const_data_ptr(), tensor.data_ptr(), tensor.numel(), nccl_type(tensor), nccl_op(op),
                         comm, stream);
  });
}

Work NcclCommunicator::do_broadcast(at::Tensor tensor, int root) {
  return launch("ncclBroadcast", backend_.gathers(), {tensor}, [&](ncclComm_t comm, cudaStream_t stream) {
    return ncclBroadcast(tensor.const_data_ptr(), tensor.data_ptr(), tensor.numel(), nccl_type(tensor), root, comm,
                         stream);
  });
}

Work NcclCommunicator::do_all_to_all(at::Tensor out, at::Tensor in) {
  std::vector<std::int64_t> bytes(size(), static_cast<std::int64_t>(in.nbytes()) / size());
  return launch("ncclSend/ncclRecv", backend_.gathers(), {out, in}, [&](ncclComm_t comm, cudaStream_t stream) {
    return exchange(comm, stream, static_cast<char*>(out.data_ptr()), bytes,
                    static_cast<const char*>(in.const_data_ptr()), bytes);
  });
}

Work NcclCommunicator::do_all_to_all_v(at::Tensor out, at::Tensor in, std::vector<std::int64_t> out_rows,
                                       std::vector<std::int64_t> in_rows) {
  auto out_bytes = bytes_of_rows(std::move(out_rows), out), in_bytes = bytes_of_rows(std::move(in_rows), in);
  return launch("ncclSend/ncclRecv", backend_.gathers(), {out, in}, [&](ncclComm_t comm, cudaStream_t stream) {
    return exchange(comm, stream, static_cast<char*>(out.data_ptr()), out_bytes,
                    static_cast<const char*>(in.const_data_ptr()), in_bytes);
  });
}

Work NcclCommunicator::do_barrier() {
  auto one = at::zeros({1}, at::device(backend_.device()).dtype(at::kInt));
  return launch(
      "ncclAllReduce", backend_.reductions(), {one},
      [&](ncclComm_t comm, cudaStream_t stream) {
        return ncclAllReduce(one.const_data_ptr(), one.data_ptr(), 1, ncclInt32, ncclSum, comm, stream);
      },
      /*blocks=*/true);
}

std::vector<std::string> visible_devices() {
  int count = 0;
  // No driver or no device is an answer, not an error.
  if (cudaGetDeviceCount(&count) != cudaSuccess) return {};
  std::vector<std::string> devices;
  for (int index = 0; index < count; ++index) {
    char bus[32] = "";
    check_cuda(cudaDeviceGetPCIBusId(bus, sizeof bus, index), "cudaDeviceGetPCIBusId");
    devices.emplace_back(bus);
  }
  return devices;
}

std::unique_ptr<DeviceBackend> make_device_backend(int index, std::chrono::milliseconds timeout) {
  check_cuda(cudaSetDevice(index), "cudaSetDevice");
  return std::make_unique<NcclBackend>(index, timeout);
}

std::string built_in_backends() {
  int version = 0;
  ncclGetVersion(&version);
  return fmt::format("mpi, nccl {}.{}.{} (CUDA {}.{})", version / 10000, version / 100 % 100, version % 100,
                     CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100);
}

}  // namespace meshard
