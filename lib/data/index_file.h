#pragma once
// Megatron's .idx file: what lies where in its .bin. Private to this room.
//
// Layout, little-endian, without padding (Megatron-LM, megatron/core/datasets/indexed_dataset.py):
//   9 bytes  magic "MMIDIDX\0\0"
//   u64      version 1
//   u8       dtype code: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16
//   u64      number of sequences S
//   u64      number of document boundaries D (documents + 1)
//   i32[S]   tokens of each sequence
//   i64[S]   byte offset of each sequence in the .bin
//   i64[D]   document boundaries as indices of sequences: 0, ..., S
// Megatron's writer puts the sequences one after another, so that the .bin is one stream of tokens; a file that does
// not is refused rather than read in an order that nobody meant.

#include <cstdint>
#include <filesystem>

namespace meshard {

enum class TokenType : std::uint8_t { U8 = 1, I8 = 2, I16 = 3, I32 = 4, I64 = 5, U16 = 8 };

/// Local. Bytes of one token.
std::int64_t bytes_of(TokenType type);

struct IndexFile {
  TokenType type = TokenType::I32;
  std::int64_t tokens = 0;  ///< of all sequences
  std::int64_t documents = 0;
};

/// Local. Reads and checks a whole index. Throws ConfigError, naming the file and the byte offset, for one that is
/// unreadable, truncated or too long, has another magic, version or a float or unknown dtype, or whose sequences or
/// documents are not as above.
IndexFile read_index(const std::filesystem::path& path);

}  // namespace meshard
