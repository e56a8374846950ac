#pragma once
// What ranks say of the launches that they have in common, in tests with the stand-in for NCCL (nccl_stub.h): on
// devices, two that differ would wait for each other for ever.

#include <c10/core/ScalarType.h>
#include <mpi.h>

#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "support/nccl_stub.h"

namespace nccl_stub {

/// Local. NCCL's dtypes and reductions in our words.
at::ScalarType dtype_of(int type);
meshard::ReduceOp op_of(int op);

enum class Kind { AllGather, ReduceScatter, AllReduce, Broadcast, SendRecv };
inline constexpr const char* kKindNames[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclBroadcast",
                                             "ncclSend/ncclRecv"};

/// What one rank tells another of a launch that both take part in.
struct Notice {
  int communicator = 0;
  int kind = 0;
  std::int64_t count = 0;  ///< of SendRecv: bytes that the sender of the notice sends to its receiver
  std::int64_t back = 0;   ///< bytes that it expects from it
  int dtype = 0;
  int op_or_root = 0;
  char name[40] = "";

  std::string text() const;
  bool fits(const Notice& peer) const;
};

// A communicator has a number of its own in the whole world: its rank 0's, and which of that rank's it is.
inline constexpr int kCommunicatorsOfARank = 2048, kTagsOfACommunicator = 4096, kNoticeTag = 1;

struct Peer {
  std::vector<Notice> launched;  ///< by this rank, with that one
  std::deque<Notice> heard;      ///< from it, not compared yet
  std::size_t agreed = 0;
};

struct Shared {
  Faults faults;
  std::thread::id main = std::this_thread::get_id();
  int world_rank = 0;
  int made = 0;  ///< communicators whose rank 0 this is
  std::map<int, Peer> peers;
  std::deque<std::pair<MPI_Request, Notice>> sending;
  std::string disagreement;
};

/// Local. What all communicators of this rank share.
Shared& shared();
/// Local. Compares what this rank and `rank` have both launched; what differs first is shared().disagreement.
void compare(int rank, Peer& peer);
/// Local. Takes in what other ranks say that they launch.
void listen();

}  // namespace nccl_stub
