#include "comm/nccl/backend.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

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
  NcclPending(std::shared_ptr<Flight> flight, NcclBackend& backend, bool blocks)
      : flight_(std::move(flight)), backend_(backend), blocks_(blocks) {}

  void wait() override {
    auto& timeline = backend_.timeline();
    auto before = timeline.mark(Lane::Compute);
    timeline.wait(Lane::Compute, flight_->end);
    backend_.in_flight().waited(*flight_, std::move(before), timeline.mark(Lane::Compute));
    if (blocks_) timeline.host_wait(flight_->end);
  }
  bool complete_after_wait() const override { return false; }
  void issued(const CallRecord& call) override {
    flight_->call = call;
    backend_.in_flight().add(flight_);
  }

 private:
  std::shared_ptr<Flight> flight_;
  NcclBackend& backend_;
  bool blocks_;
};

// An event's time is a float of milliseconds: counted from further back it would be too coarse.
constexpr double kAnchorSeconds = 10.0;

}  // namespace

void InFlight::begin_at(TokenPtr anchor) {
  anchor_ = std::move(anchor);
  anchor_seconds_ = steady_seconds();
}

CallTimes InFlight::times_of(const Flight& flight) {
  auto begin = flight.start->seconds_since(*anchor_), end = flight.end->seconds_since(*anchor_);
  // The clocks drift apart over days; nothing begins before it is issued, nor ends after it was seen to have ended.
  auto least = flight.call.entered - begin, most = steady_seconds() - end;
  anchor_seconds_ = std::min(std::max(anchor_seconds_, least), most);
  CallTimes times{.begin = anchor_seconds_ + begin, .end = anchor_seconds_ + end};
  if (flight.after_wait) times.exposed = flight.after_wait->seconds_since(*flight.before_wait);
  if (end > kAnchorSeconds) {
    anchor_ = flight.end;
    anchor_seconds_ = times.end;
  }
  return times;
}

void InFlight::add(std::shared_ptr<Flight> flight) {
  collect();
  std::lock_guard lock(mutex_);
  flights_.push_back(std::move(flight));
}

void InFlight::waited(Flight& flight, TokenPtr before, TokenPtr after) {
  std::lock_guard lock(mutex_);
  flight.before_wait = std::move(before);
  flight.after_wait = std::move(after);
}

void InFlight::collect() {
  std::lock_guard lock(mutex_);
  std::erase_if(flights_, [&](const std::shared_ptr<Flight>& each) {
    if (!each->after_wait || !each->after_wait->done() || !each->end->done()) return false;
    each->recorder->complete(each->call, times_of(*each));
    return true;
  });
}

std::uint64_t InFlight::oldest() const {
  std::lock_guard lock(mutex_);
  auto first = std::ranges::find_if(flights_, [](auto& each) { return !each->end->done(); });
  return first == flights_.end() ? 0 : (*first)->call.sequence;
}

NcclBackend::NcclBackend(std::unique_ptr<Timeline> timeline, std::chrono::milliseconds timeout)
    : timeout_(timeout), timeline_(std::move(timeline)) {
  check_nccl_version();
  auto now = timeline_->mark(Lane::Compute);
  timeline_->host_wait(now);
  in_flight_.begin_at(std::move(now));
}

std::unique_ptr<Communicator> NcclBackend::make_communicator(MpiComm comm, MPI_Comm world, const std::string& axis,
                                                             Recorder& recorder) {
  return std::make_unique<NcclCommunicator>(std::move(comm), world, axis, *this, recorder, timeout_);
}

std::uint64_t NcclBackend::oldest_unfinished() {
  timeline_->enter_thread();
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

// What crosses nodes is slow, and has time: nothing of the inner axes may wait behind it.
Lane NcclCommunicator::lane(Lane inner) const {
  return axis() == kOuterAxis ? Lane::Outer : inner;
}

Work NcclCommunicator::launch(std::string_view call, Lane lane, std::vector<at::Tensor> tensors, const Issue& issue,
                              bool blocks) {
  for (auto& tensor : tensors) {
    if (tensor.device() != backend_.device()) {
      throw ShapeError(fmt::format("axis {} is over NCCL: tensors must be on {}, not on {}", axis(),
                                   backend_.device().str(), tensor.device().str()));
    }
  }
  auto& timeline = backend_.timeline();
  auto operation = this->operation();
  operation.tensors = std::move(tensors);
  timeline.wait(lane, timeline.mark(Lane::Compute));
  auto flight = std::make_shared<Flight>();
  flight->recorder = &recorder();
  flight->start = timeline.mark(lane);
  flight->end = timeline.enqueue(lane, operation, [&](void* stream) {
    nccl_.group(call,
                [&](ncclComm_t comm) { check_nccl(issue(comm, static_cast<cudaStream_t>(stream)), call, axis()); });
  });
  return Work(std::make_unique<NcclPending>(std::move(flight), backend_, blocks));
}

Work NcclCommunicator::do_all_gather(at::Tensor full, at::Tensor shard) {
  return launch("ncclAllGather", lane(Lane::Gather), {full, shard}, [&](ncclComm_t comm, cudaStream_t stream) {
    return ncclAllGather(shard.const_data_ptr(), full.data_ptr(), shard.numel(), nccl_type(full), comm, stream);
  });
}

Work NcclCommunicator::do_reduce_scatter(at::Tensor shard, at::Tensor full, ReduceOp op) {
  return launch("ncclReduceScatter", lane(Lane::Reduce), {shard, full}, [&](ncclComm_t comm, cudaStream_t stream) {
    return ncclReduceScatter(full.const_data_ptr(), shard.data_ptr(), shard.numel(), nccl_type(full), nccl_op(op), comm,
                             stream);
  });
}

Work NcclCommunicator::do_all_reduce(at::Tensor tensor, ReduceOp op) {
  return launch("ncclAllReduce", lane(Lane::Reduce), {tensor}, [&](ncclComm_t comm, cudaStream_t stream) {
    return ncclAllReduce(tensor.const_data_ptr(), tensor.data_ptr(), tensor.numel(), nccl_type(tensor), nccl_op(op),
                         comm, stream);
  });
}

Work NcclCommunicator::do_broadcast(at::Tensor tensor, int root) {
  return launch("ncclBroadcast", lane(Lane::Gather), {tensor}, [&](ncclComm_t comm, cudaStream_t stream) {
    return ncclBroadcast(tensor.const_data_ptr(), tensor.data_ptr(), tensor.numel(), nccl_type(tensor), root, comm,
                         stream);
  });
}

Work NcclCommunicator::do_all_to_all(at::Tensor out, at::Tensor in) {
  std::vector<std::int64_t> bytes(size(), static_cast<std::int64_t>(in.nbytes()) / size());
  return launch("ncclSend/ncclRecv", lane(Lane::Exchange), {out, in}, [&](ncclComm_t comm, cudaStream_t stream) {
    return exchange(comm, stream, static_cast<char*>(out.data_ptr()), bytes,
                    static_cast<const char*>(in.const_data_ptr()), bytes);
  });
}

Work NcclCommunicator::do_all_to_all_v(at::Tensor out, at::Tensor in, std::vector<std::int64_t> out_rows,
                                       std::vector<std::int64_t> in_rows) {
  auto out_bytes = bytes_of_rows(std::move(out_rows), out), in_bytes = bytes_of_rows(std::move(in_rows), in);
  return launch("ncclSend/ncclRecv", lane(Lane::Exchange), {out, in}, [&](ncclComm_t comm, cudaStream_t stream) {
    return exchange(comm, stream, static_cast<char*>(out.data_ptr()), out_bytes,
                    static_cast<const char*>(in.const_data_ptr()), in_bytes);
  });
}

Work NcclCommunicator::do_barrier() {
  auto one = at::zeros({1}, at::device(backend_.device()).dtype(at::kInt));
  return launch(
      "ncclAllReduce", lane(Lane::Reduce), {one},
      [&](ncclComm_t comm, cudaStream_t stream) {
        return ncclAllReduce(one.const_data_ptr(), one.data_ptr(), 1, ncclInt32, ncclSum, comm, stream);
      },
      /*blocks=*/true);
}

}  // namespace meshard
