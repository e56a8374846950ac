#include "comm/mpi/operations.h"

#include <cstring>
#include <numeric>

#include "comm/mpi/reduce.h"
#include "comm/mpi/support.h"

namespace meshard {

namespace {

/// Below this, all-reduce gathers everything everywhere, in one round instead of two.
constexpr std::int64_t kSmallBytes = 64 * 1024;

ByteSpan span_of(const at::Tensor& tensor) {
  return {static_cast<char*>(tensor.data_ptr()), static_cast<std::int64_t>(tensor.nbytes())};
}

ByteSpan slice_of(ByteSpan whole, std::int64_t offset, std::int64_t bytes) {
  return {whole.data + offset, bytes};
}

/// Sends this rank's slice to every peer and receives theirs into place.
void post_all_gather(Messages& messages, const MpiChannel& channel, const Slices& slices) {
  for_each_peer(channel, [&](int to, int from) {
    messages.receive(slices.of(from), from);
    messages.send(slices.of(channel.rank), to);
  });
}

/// Plain messages: done when all have arrived. Also all-gather.
class Exchange : public MpiOperation {
 public:
  Exchange(MpiChannel& channel, std::vector<at::Tensor> keep)
      : messages(channel, channel.take_tag()), keep_(std::move(keep)) {}
  bool step() override { return messages.done(); }

  Messages messages;

 private:
  std::vector<at::Tensor> keep_;
};

class ReduceScatter : public MpiOperation {
 public:
  ReduceScatter(MpiChannel& channel, at::Tensor shard, at::Tensor full, ReduceOp op)
      : shard_(std::move(shard)),
        full_(std::move(full)),
        reduction_(channel, {span_of(full_), span_of(shard_).bytes}, span_of(shard_).data, full_.scalar_type(), op) {}
  bool step() override { return reduction_.step(); }

 private:
  at::Tensor shard_, full_;
  SliceReduction reduction_;
};

/// A reduce-scatter in place, then an all-gather in place.
class AllReduce : public MpiOperation {
 public:
  AllReduce(MpiChannel& channel, at::Tensor tensor, ReduceOp op)
      : channel_(channel),
        tensor_(std::move(tensor)),
        slices_{span_of(tensor_), slice_bytes(channel, tensor_)},
        gather_(channel, channel.take_tag()),
        reduction_(channel, slices_, slices_.of(channel.rank).data, tensor_.scalar_type(), op) {}

  bool step() override {
    if (!gathering_) {
      if (!reduction_.step()) return false;
      post_all_gather(gather_, channel_, slices_);
      gathering_ = true;
    }
    return gather_.done();
  }

 private:
  static std::int64_t slice_bytes(const MpiChannel& channel, const at::Tensor& tensor) {
    auto even = (static_cast<std::int64_t>(tensor.nbytes()) + channel.size - 1) / channel.size;
    return (even + kMessageAlignment - 1) / kMessageAlignment * kMessageAlignment;
  }

  MpiChannel& channel_;
  at::Tensor tensor_;
  Slices slices_;
  Messages gather_;
  SliceReduction reduction_;
  bool gathering_ = false;
};

/// Every rank gathers all versions and folds them itself: the same bits, as the order is the same.
class SmallAllReduce : public MpiOperation {
 public:
  SmallAllReduce(MpiChannel& channel, at::Tensor tensor, ReduceOp op)
      : channel_(channel),
        tensor_(std::move(tensor)),
        op_(op),
        scratch_(channel.scratch->take(channel.size * tensor_.nbytes())) {
    auto bytes = static_cast<int>(tensor_.nbytes());
    check_mpi(MPI_Iallgather(tensor_.const_data_ptr(), bytes, MPI_BYTE, scratch_.data(), bytes, MPI_BYTE, channel.comm,
                             &request_),
              "MPI_Iallgather", channel.axis);
  }

  bool step() override {
    int done = 0;
    check_mpi(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), "MPI_Test", channel_.axis);
    if (!done) return false;
    std::vector<const void*> inputs(channel_.size);
    for (int from = 0; from < channel_.size; ++from) inputs[from] = scratch_.data() + from * tensor_.nbytes();
    reduce_in_order(tensor_.data_ptr(), inputs, tensor_.numel(), tensor_.scalar_type(), op_);
    return true;
  }

 private:
  MpiChannel& channel_;
  at::Tensor tensor_;
  ReduceOp op_;
  ScratchPool::Lease scratch_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

/// Collectives of MPI itself.
class Native : public MpiOperation {
 public:
  Native(MpiChannel& channel, at::Tensor keep) : axis_(channel.axis), keep_(std::move(keep)) {}

  bool step() override {
    int done = 0;
    check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
              "MPI_Testall", axis_);
    return done;
  }

  std::vector<MPI_Request> requests;

 private:
  std::string axis_;
  at::Tensor keep_;
};

}  // namespace

std::unique_ptr<MpiOperation> start_all_gather(MpiChannel& channel, at::Tensor full, const at::Tensor& shard) {
  Slices slices{span_of(full), span_of(shard).bytes};
  auto mine = slices.of(channel.rank);
  if (mine.data != span_of(shard).data && mine.bytes > 0) std::memcpy(mine.data, span_of(shard).data, mine.bytes);
  auto operation = std::make_unique<Exchange>(channel, std::vector{std::move(full)});
  post_all_gather(operation->messages, channel, slices);
  return operation;
}

std::unique_ptr<MpiOperation> start_reduce_scatter(MpiChannel& channel, at::Tensor shard, at::Tensor full,
                                                   ReduceOp op) {
  return std::make_unique<ReduceScatter>(channel, std::move(shard), std::move(full), op);
}

std::unique_ptr<MpiOperation> start_all_reduce(MpiChannel& channel, at::Tensor tensor, ReduceOp op) {
  if (static_cast<std::int64_t>(tensor.nbytes()) * channel.size <= kSmallBytes) {
    return std::make_unique<SmallAllReduce>(channel, std::move(tensor), op);
  }
  return std::make_unique<AllReduce>(channel, std::move(tensor), op);
}

std::unique_ptr<MpiOperation> start_broadcast(MpiChannel& channel, at::Tensor tensor, int root) {
  auto whole = span_of(tensor);
  auto operation = std::make_unique<Native>(channel, std::move(tensor));
  for (auto piece : message_pieces(whole.bytes, channel.max_message_bytes)) {
    check_mpi(MPI_Ibcast(whole.data + piece.offset, static_cast<int>(piece.bytes), MPI_BYTE, root, channel.comm,
                         &operation->requests.emplace_back()),
              "MPI_Ibcast", channel.axis);
  }
  return operation;
}

std::unique_ptr<MpiOperation> start_all_to_all(MpiChannel& channel, at::Tensor out, at::Tensor in,
                                               const std::vector<std::int64_t>& out_bytes,
                                               const std::vector<std::int64_t>& in_bytes) {
  std::vector<std::int64_t> out_begin(channel.size), in_begin(channel.size);
  std::exclusive_scan(out_bytes.begin(), out_bytes.end(), out_begin.begin(), std::int64_t{0});
  std::exclusive_scan(in_bytes.begin(), in_bytes.end(), in_begin.begin(), std::int64_t{0});
  auto from_me = slice_of(span_of(in), in_begin[channel.rank], in_bytes[channel.rank]);
  if (from_me.bytes > 0) std::memcpy(span_of(out).data + out_begin[channel.rank], from_me.data, from_me.bytes);
  auto into = span_of(out), from = span_of(in);
  auto operation = std::make_unique<Exchange>(channel, std::vector{std::move(out), std::move(in)});
  for_each_peer(channel, [&](int to, int source) {
    operation->messages.receive(slice_of(into, out_begin[source], out_bytes[source]), source);
    operation->messages.send(slice_of(from, in_begin[to], in_bytes[to]), to);
  });
  return operation;
}

std::unique_ptr<MpiOperation> start_barrier(MpiChannel& channel) {
  auto operation = std::make_unique<Native>(channel, at::Tensor());
  check_mpi(MPI_Ibarrier(channel.comm, &operation->requests.emplace_back()), "MPI_Ibarrier", channel.axis);
  return operation;
}

}  // namespace meshard
