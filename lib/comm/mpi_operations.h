#pragma once
// The collectives of the mpi backend, as state machines over point-to-point messages (barrier and broadcast: MPI's
// own). All sends of an operation are posted when it is issued, so a peer's progress needs no more of this rank than
// that it calls MPI now and then; only the second half of a large all-reduce is posted later.
//
// Reductions pull one chunk of every peer's slice at a time into a small scratch and fold it while it is in the cache:
// on one host that is 1.2 to 1.8 times as fast as an all-to-all into a full-size buffer, and needs no such buffer.

#include <ATen/core/Tensor.h>
#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi_engine.h"
#include "comm/scratch_pool.h"

namespace meshard {

/// What the operations of one communicator share.
struct MpiChannel {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::string axis;
  std::int64_t max_message_bytes = 0;
  std::shared_ptr<ScratchPool> scratch = std::make_shared<ScratchPool>();
  int next_tag = 0;  ///< operations of one communicator are told apart by tag: they may be in flight together

  int take_tag() { return next_tag = (next_tag + 1) % 32768; }  // MPI promises tags up to 32767
};

/// A byte range of a buffer.
struct ByteSpan {
  char* data = nullptr;
  std::int64_t bytes = 0;
};

/// Messages in flight under one tag.
class Messages {
 public:
  explicit Messages(MpiChannel& channel, int tag) : channel_(&channel), tag_(tag) {}

  /// Local. Posts the message, in pieces if it is long; nothing if it is empty.
  void send(ByteSpan from, int to);
  void receive(ByteSpan into, int from);
  /// Local. True once all that was posted has arrived (left).
  bool done();

 private:
  MpiChannel* channel_;
  int tag_;
  std::vector<MPI_Request> requests_;
};

/// Local. Operations, issued. `slices[i]` is rank i's part.
std::unique_ptr<MpiOperation> start_all_gather(MpiChannel& channel, at::Tensor full, const at::Tensor& shard);
std::unique_ptr<MpiOperation> start_reduce_scatter(MpiChannel& channel, at::Tensor shard, at::Tensor full, ReduceOp op);
std::unique_ptr<MpiOperation> start_all_reduce(MpiChannel& channel, at::Tensor tensor, ReduceOp op);
std::unique_ptr<MpiOperation> start_broadcast(MpiChannel& channel, at::Tensor tensor, int root);
/// `out_bytes[i]` come from rank i, `in_bytes[i]` go to it; both lie in rank order in their tensors.
std::unique_ptr<MpiOperation> start_all_to_all(MpiChannel& channel, at::Tensor out, at::Tensor in,
                                               const std::vector<std::int64_t>& out_bytes,
                                               const std::vector<std::int64_t>& in_bytes);
std::unique_ptr<MpiOperation> start_barrier(MpiChannel& channel);

}  // namespace meshard
