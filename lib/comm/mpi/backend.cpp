#include "comm/mpi/backend.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshard {

namespace {

class MpiPending : public Work::Pending {
 public:
  MpiPending(MpiEngine& engine, std::unique_ptr<MpiOperation> operation)
      : engine_(engine), operation_(std::move(operation)) {}
  ~MpiPending() override {
    engine_.remove(*operation_);
    // MPI may still write into its buffers: a wait that failed leaves them to it.
    if (failed_) static_cast<void>(operation_.release());
  }
  void wait() override {
    failed_ = true;
    engine_.finish(*operation_);
    engine_.report();
    failed_ = false;
  }
  void issued(const CallRecord& call) override { engine_.set_call(*operation_, call); }

 private:
  MpiEngine& engine_;
  std::unique_ptr<MpiOperation> operation_;
  bool failed_ = false;
};

std::vector<std::int64_t> in_bytes(std::vector<std::int64_t> rows, const at::Tensor& tensor) {
  auto row = tensor.element_size() * c10::multiply_integers(tensor.sizes().slice(1));
  for (auto& count : rows) count *= row;
  return rows;
}

}  // namespace

MpiCommunicator::MpiCommunicator(MpiComm comm, MPI_Comm world, const std::string& axis, MpiEngine& engine,
                                 Recorder& recorder, std::int64_t max_message_bytes)
    : Communicator(axis, comm.rank(), comm.members_in(world), recorder), comm_(std::move(comm)), engine_(engine) {
  channel_.comm = comm_->get();
  channel_.rank = rank();
  channel_.size = size();
  channel_.axis = axis;
  channel_.max_message_bytes = max_message_bytes;
}

MpiCommunicator::~MpiCommunicator() {
  engine_.remove_all(channel_);
  std::lock_guard lock(engine_.mutex());
  comm_.reset();
}

// `start` posts the first messages.
template <typename Start>
Work MpiCommunicator::issue(Start start) {
  std::lock_guard lock(engine_.mutex());
  std::unique_ptr<MpiOperation> operation = start();
  engine_.add(*operation, channel_);
  return Work(std::make_unique<MpiPending>(engine_, std::move(operation)));
}

void MpiCommunicator::check_host(const at::Tensor& tensor) const {
  if (!tensor.is_cpu()) {
    throw ShapeError(
        fmt::format("axis {} is over MPI: tensors must be on the host, not on {}", axis(), tensor.device().str()));
  }
}

Work MpiCommunicator::do_all_gather(at::Tensor full, at::Tensor shard) {
  check_host(full);
  return issue([&] { return start_all_gather(channel_, std::move(full), shard); });
}

Work MpiCommunicator::do_reduce_scatter(at::Tensor shard, at::Tensor full, ReduceOp op) {
  check_host(full);
  return issue([&] { return start_reduce_scatter(channel_, std::move(shard), std::move(full), op); });
}

Work MpiCommunicator::do_all_reduce(at::Tensor tensor, ReduceOp op) {
  check_host(tensor);
  return issue([&] { return start_all_reduce(channel_, std::move(tensor), op); });
}

Work MpiCommunicator::do_broadcast(at::Tensor tensor, int root) {
  check_host(tensor);
  return issue([&] { return start_broadcast(channel_, std::move(tensor), root); });
}

Work MpiCommunicator::do_all_to_all(at::Tensor out, at::Tensor in) {
  check_host(out);
  std::vector<std::int64_t> bytes(size(), static_cast<std::int64_t>(in.nbytes()) / size());
  return issue([&] { return start_all_to_all(channel_, std::move(out), std::move(in), bytes, bytes); });
}

Work MpiCommunicator::do_all_to_all_v(at::Tensor out, at::Tensor in, std::vector<std::int64_t> out_rows,
                                      std::vector<std::int64_t> in_rows) {
  check_host(out);
  auto out_bytes = in_bytes(std::move(out_rows), out), from_bytes = in_bytes(std::move(in_rows), in);
  return issue([&] { return start_all_to_all(channel_, std::move(out), std::move(in), out_bytes, from_bytes); });
}

Work MpiCommunicator::do_barrier() {
  return issue([&] { return start_barrier(channel_); });
}

}  // namespace meshard
