#pragma once
// MPI counts are ints: a message of more than 2^31-1 bytes travels in pieces.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace meshard {

/// The default limit: well inside an int, and a multiple of every element and cache line size.
inline constexpr std::int64_t kMaxMessageBytes = std::int64_t{1} << 30;

/// Messages and the parts that ranks work on begin at multiples of so many bytes: a cache line.
inline constexpr std::int64_t kMessageAlignment = 64;

/// Bytes [offset, offset + bytes) of a message.
struct MessagePiece {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  bool operator==(const MessagePiece&) const = default;
};

/// Local. Cuts a message into pieces of `limit` bytes (> 0) and a rest, in order. An empty message has no pieces.
inline std::vector<MessagePiece> message_pieces(std::int64_t bytes, std::int64_t limit) {
  std::vector<MessagePiece> pieces;
  for (std::int64_t offset = 0; offset < bytes; offset += limit) {
    pieces.push_back({offset, std::min(limit, bytes - offset)});
  }
  return pieces;
}

}  // namespace meshard
