#include "support/nccl_launches.h"

#include <fmt/format.h>
#include <nccl.h>

using namespace meshard;

namespace nccl_stub {

at::ScalarType dtype_of(int type) {
  switch (type) {
    case ncclFloat32:
      return at::kFloat;
    case ncclBfloat16:
      return at::kBFloat16;
    case ncclFloat64:
      return at::kDouble;
    case ncclInt32:
      return at::kInt;
    case ncclInt64:
      return at::kLong;
    default:
      return at::kByte;
  }
}

ReduceOp op_of(int op) {
  return op == ncclAvg ? ReduceOp::Average : op == ncclMax ? ReduceOp::Max : ReduceOp::Sum;
}

std::string Notice::text() const {
  if (kind == static_cast<int>(Kind::SendRecv)) {
    return fmt::format("{} on {} of {} bytes out and {} in", kKindNames[kind], name, count, back);
  }
  return fmt::format("{} on {} of {} x {}, {} {}", kKindNames[kind], name, count, c10::toString(dtype_of(dtype)),
                     kind == static_cast<int>(Kind::Broadcast) ? "root" : "op", op_or_root);
}

bool Notice::fits(const Notice& peer) const {
  bool sizes =
      kind == static_cast<int>(Kind::SendRecv) ? count == peer.back && back == peer.count : count == peer.count;
  return communicator == peer.communicator && kind == peer.kind && sizes && dtype == peer.dtype &&
         op_or_root == peer.op_or_root;
}

Shared& shared() {
  static Shared shared;
  return shared;
}

void compare(int rank, Peer& peer) {
  while (!peer.heard.empty() && peer.agreed < peer.launched.size()) {
    auto& mine = peer.launched[peer.agreed];
    auto theirs = peer.heard.front();
    if (!mine.fits(theirs)) {
      auto& text = shared().disagreement;
      if (text.empty()) {
        text =
            fmt::format("launch {} that ranks {} and {} have in common: rank {} launches {}, rank {} launches {}",
                        peer.agreed, shared().world_rank, rank, shared().world_rank, mine.text(), rank, theirs.text());
      }
      return;
    }
    peer.heard.pop_front();
    ++peer.agreed;
  }
}

void listen() {
  auto& all = shared();
  for (int flag = 1; flag;) {
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kNoticeTag, MPI_COMM_WORLD, &flag, &status);
    if (!flag) break;
    Notice notice;
    MPI_Recv(&notice, sizeof notice, MPI_BYTE, status.MPI_SOURCE, kNoticeTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    auto& peer = all.peers[status.MPI_SOURCE];
    peer.heard.push_back(notice);
    compare(status.MPI_SOURCE, peer);
  }
  while (!all.sending.empty()) {
    int done = 0;
    MPI_Test(&all.sending.front().first, &done, MPI_STATUS_IGNORE);
    if (!done) break;
    all.sending.pop_front();
  }
}

}  // namespace nccl_stub
