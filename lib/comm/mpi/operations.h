#pragma once
// The collectives of the mpi backend, as state machines over point-to-point messages (barrier and broadcast: MPI's
// own). All sends of an operation are posted when it is issued, so a peer's progress needs no more of this rank than
// that it calls MPI now and then; only the second half of a large all-reduce is posted later.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/mpi/messages.h"

namespace meshard {

/// Local. Operations, issued: what Communicator's functions of the same names do. The tensors are kept.
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
