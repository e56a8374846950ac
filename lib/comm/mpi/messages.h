#pragma once
// Messages between the ranks of one communicator, and the reduction that is made of them.

#include <c10/core/ScalarType.h>
#include <mpi.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/engine.h"
#include "comm/mpi/message_pieces.h"
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

/// Local. Calls visit(to, from) for each step in which this rank sends to one peer and receives from another, in an
/// order in which no rank is everybody's first.
template <typename Visit>
void for_each_peer(const MpiChannel& channel, Visit visit) {
  for (int step = 1; step < channel.size; ++step) {
    visit((channel.rank + step) % channel.size, (channel.rank - step + channel.size) % channel.size);
  }
}

/// A buffer cut into one slice per rank, all of `slice_bytes` but those at its end, which may be shorter or empty.
struct Slices {
  ByteSpan whole;
  std::int64_t slice_bytes = 0;

  ByteSpan of(int rank) const;
};

/// Folds every rank's version of this rank's slice into `out`, in rank order. One chunk of every peer's version at a
/// time is pulled into a small scratch and folded while it is in the cache: on one host that is 1.2 to 1.8 times as
/// fast as an all-to-all into a full-size buffer, and needs no such buffer.
class SliceReduction {
 public:
  /// Local. Posts all sends and the first receives. `out` may be this rank's slice itself.
  SliceReduction(MpiChannel& channel, const Slices& slices, char* out, at::ScalarType dtype, ReduceOp op);

  /// Local. True once `out` is complete and the peers have what they need of `slices`.
  bool step();

 private:
  char* landing(std::size_t chunk, int from);
  void receive(std::size_t chunk);
  void fold(std::size_t chunk);

  MpiChannel& channel_;
  ByteSpan mine_;
  char* out_;
  at::ScalarType dtype_;
  ReduceOp op_;
  int tag_;
  std::vector<MessagePiece> chunks_;
  std::int64_t stride_;
  ScratchPool::Lease scratch_;
  Messages sends_;
  std::optional<Messages> arriving_[2];  ///< chunks i and i + 1, by parity
  std::size_t folded_ = 0;
};

}  // namespace meshard
