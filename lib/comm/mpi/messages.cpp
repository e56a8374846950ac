#include "comm/mpi/messages.h"

#include <algorithm>

#include "comm/mpi/reduce.h"
#include "comm/mpi/support.h"

namespace meshard {

namespace {

/// A chunk is small enough for the cache and large enough that its message costs little.
constexpr std::int64_t kChunkBytes = 512 * 1024, kLeastChunkBytes = 4 * 1024;
constexpr std::int64_t kScratchBytes = 8 * 1024 * 1024;
/// Messages per peer and operation: all are posted at once, and MPI searches them in a list.
constexpr std::int64_t kMostChunks = 256;

/// Both ends of a message must cut alike: the size depends on nothing but the ranks and the longest slice.
std::int64_t chunk_bytes(int ranks, std::int64_t slice_bytes) {
  auto chunk = std::clamp(kScratchBytes / (2 * ranks), kLeastChunkBytes, kChunkBytes);
  chunk = std::max(chunk, slice_bytes / kMostChunks);
  return chunk / kMessageAlignment * kMessageAlignment;
}

}  // namespace

void Messages::send(ByteSpan from, int to) {
  for (auto piece : message_pieces(from.bytes, channel_->max_message_bytes)) {
    check_mpi(MPI_Isend(from.data + piece.offset, static_cast<int>(piece.bytes), MPI_BYTE, to, tag_, channel_->comm,
                        &requests_.emplace_back()),
              "MPI_Isend", channel_->axis);
  }
}

void Messages::receive(ByteSpan into, int from) {
  for (auto piece : message_pieces(into.bytes, channel_->max_message_bytes)) {
    check_mpi(MPI_Irecv(into.data + piece.offset, static_cast<int>(piece.bytes), MPI_BYTE, from, tag_, channel_->comm,
                        &requests_.emplace_back()),
              "MPI_Irecv", channel_->axis);
  }
}

bool Messages::done() {
  int done = 0;
  check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall", channel_->axis);
  if (done) requests_.clear();
  return done;
}

ByteSpan Slices::of(int rank) const {
  auto begin = std::min(rank * slice_bytes, whole.bytes);
  return {whole.data + begin, std::min(slice_bytes, whole.bytes - begin)};
}

SliceReduction::SliceReduction(MpiChannel& channel, const Slices& slices, char* out, at::ScalarType dtype, ReduceOp op)
    : channel_(channel),
      mine_(slices.of(channel.rank)),
      out_(out),
      dtype_(dtype),
      op_(op),
      tag_(channel.take_tag()),
      chunks_(message_pieces(mine_.bytes, chunk_bytes(channel.size, slices.slice_bytes))),
      stride_(chunks_.empty() ? 0 : chunks_[0].bytes),
      scratch_(channel.scratch->take(2 * channel.size * stride_)),
      sends_(channel, tag_) {
  receive(0);
  receive(1);
  auto chunk = chunk_bytes(channel.size, slices.slice_bytes);
  for_each_peer(channel_, [&](int to, int) {
    auto slice = slices.of(to);
    for (auto piece : message_pieces(slice.bytes, chunk)) sends_.send({slice.data + piece.offset, piece.bytes}, to);
  });
}

bool SliceReduction::step() {
  while (folded_ < chunks_.size()) {
    if (!arriving_[folded_ % 2]->done()) return false;
    fold(folded_);
    receive(++folded_ + 1);
  }
  return sends_.done();
}

char* SliceReduction::landing(std::size_t chunk, int from) {
  return scratch_.data() + (static_cast<std::int64_t>(chunk % 2) * channel_.size + from) * stride_;
}

void SliceReduction::receive(std::size_t chunk) {
  if (chunk >= chunks_.size()) return;
  auto& messages = arriving_[chunk % 2].emplace(channel_, tag_);
  for_each_peer(channel_, [&](int, int from) { messages.receive({landing(chunk, from), chunks_[chunk].bytes}, from); });
}

void SliceReduction::fold(std::size_t chunk) {
  auto [offset, bytes] = chunks_[chunk];
  std::vector<const void*> inputs(channel_.size);
  for (int from = 0; from < channel_.size; ++from) inputs[from] = landing(chunk, from);
  inputs[channel_.rank] = mine_.data + offset;
  auto element = static_cast<std::int64_t>(c10::elementSize(dtype_));
  reduce_in_order(out_ + offset, inputs, bytes / element, dtype_, op_);
}

}  // namespace meshard
