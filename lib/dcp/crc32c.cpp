#include "dcp/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace meshard {
namespace {

using CrcBytes = std::span<const std::byte>;

constexpr std::uint32_t kCastagnoli = 0x82f63b78;
constexpr std::uint32_t kZipPolynomial = 0xedb88320;

template <std::uint32_t Polynomial>
constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? Polynomial : 0);
    table[i] = crc;
  }
  return table;
}

/// Of a register, not a checksum: neither inverted before nor after.
template <std::uint32_t Polynomial>
[[maybe_unused]] std::uint32_t by_table(std::uint32_t crc, CrcBytes bytes) {
  static constexpr auto kTable = make_crc_table<Polynomial>();
  for (auto byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
  return crc;
}

[[maybe_unused]] std::uint64_t word_at(const std::byte* bytes) {
  std::uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

#if defined(__SSE4_2__)

constexpr std::size_t kLane = 4096;

/// What kLane zero bytes do to a register: linear, so a table per byte of it.
using ShiftTable = std::array<std::array<std::uint32_t, 256>, 4>;

ShiftTable make_lane_shift() {
  ShiftTable table{};
  for (std::size_t bit = 0; bit < 32; ++bit) {
    std::uint64_t crc = std::uint64_t{1} << bit;
    for (std::size_t i = 0; i < kLane; i += 8) crc = _mm_crc32_u64(crc, 0);
    for (std::size_t value = 0; value < 256; ++value) {
      if (value >> (bit % 8) & 1) table[bit / 8][value] ^= static_cast<std::uint32_t>(crc);
    }
  }
  return table;
}

std::uint32_t castagnoli(std::uint32_t crc, CrcBytes bytes) {
  static const ShiftTable kShift = make_lane_shift();
  auto shifted = [&](std::uint64_t c) {
    return kShift[0][c & 0xff] ^ kShift[1][c >> 8 & 0xff] ^ kShift[2][c >> 16 & 0xff] ^ kShift[3][c >> 24 & 0xff];
  };
  std::uint64_t a = crc;
  // The instruction takes three cycles and one can start in each: three lanes keep it busy.
  for (; bytes.size() >= 3 * kLane; bytes = bytes.subspan(3 * kLane)) {
    std::uint64_t b = 0, c = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      a = _mm_crc32_u64(a, word_at(bytes.data() + i));
      b = _mm_crc32_u64(b, word_at(bytes.data() + kLane + i));
      c = _mm_crc32_u64(c, word_at(bytes.data() + 2 * kLane + i));
    }
    a = shifted(shifted(a) ^ b) ^ c;
  }
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) a = _mm_crc32_u64(a, word_at(bytes.data()));
  return by_table<kCastagnoli>(static_cast<std::uint32_t>(a), bytes);
}

#elif defined(__ARM_FEATURE_CRC32)

std::uint32_t castagnoli(std::uint32_t crc, CrcBytes bytes) {
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) crc = __crc32cd(crc, word_at(bytes.data()));
  return by_table<kCastagnoli>(crc, bytes);
}

#else

std::uint32_t castagnoli(std::uint32_t crc, CrcBytes bytes) {
  return by_table<kCastagnoli>(crc, bytes);
}

#endif

#if defined(__x86_64__)

__attribute__((target("pclmul"))) inline __m128i fold_block(__m128i value, __m128i by, __m128i next) {
  auto folded = _mm_xor_si128(_mm_clmulepi64_si128(value, by, 0x00), _mm_clmulepi64_si128(value, by, 0x11));
  return _mm_xor_si128(folded, next);
}

inline __m128i load_block(const std::byte* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

// Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ" (Intel, 2009): 64 bytes at a time are
// folded into the next 64; the last 16 that remain have the checksum of all.
__attribute__((target("pclmul"))) std::uint32_t by_folding(std::uint32_t crc, CrcBytes bytes) {
  auto by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  const std::byte* at = bytes.data();
  auto a = _mm_xor_si128(load_block(at), _mm_cvtsi32_si128(static_cast<int>(crc)));
  auto b = load_block(at + 16), c = load_block(at + 32), d = load_block(at + 48);
  std::size_t left = bytes.size() - 64;
  for (at += 64; left >= 64; at += 64, left -= 64) {
    a = fold_block(a, by_64, load_block(at));
    b = fold_block(b, by_64, load_block(at + 16));
    c = fold_block(c, by_64, load_block(at + 32));
    d = fold_block(d, by_64, load_block(at + 48));
  }
  a = fold_block(fold_block(fold_block(a, by_16, b), by_16, c), by_16, d);
  for (; left >= 16; at += 16, left -= 16) a = fold_block(a, by_16, load_block(at));
  std::array<std::byte, 16> rest;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest.data()), a);
  return by_table<kZipPolynomial>(by_table<kZipPolynomial>(0, rest), {at, left});
}

std::uint32_t zip_register(std::uint32_t crc, CrcBytes bytes) {
  static const bool kFolds = __builtin_cpu_supports("pclmul");  // not part of x86-64-v3
  return kFolds && bytes.size() >= 64 ? by_folding(crc, bytes) : by_table<kZipPolynomial>(crc, bytes);
}

#elif defined(__ARM_FEATURE_CRC32)

std::uint32_t zip_register(std::uint32_t crc, CrcBytes bytes) {
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) crc = __crc32d(crc, word_at(bytes.data()));
  return by_table<kZipPolynomial>(crc, bytes);
}

#else

std::uint32_t zip_register(std::uint32_t crc, CrcBytes bytes) {
  return by_table<kZipPolynomial>(crc, bytes);
}

#endif
}  // namespace

std::uint32_t crc32c(CrcBytes bytes, std::uint32_t before) {
  return ~castagnoli(~before, bytes);
}

std::uint32_t zip_crc32(CrcBytes bytes, std::uint32_t before) {
  return ~zip_register(~before, bytes);
}

}  // namespace meshard
