#pragma once
// Stable 64-bit hashes: the same on every machine and in every version, because files and seeds depend on them.

#include <cstdint>
#include <string_view>

namespace meshard {

/// Local. FNV-1a over the bytes.
std::uint64_t hash_text(std::string_view text) noexcept;

/// Local. The splitmix64 finaliser (Steele, Lea, Flood 2014): a bijection on 64 bits in which every input bit reaches
/// every output bit.
constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace meshard
