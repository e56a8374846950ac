#pragma once
// CRC-32C (Castagnoli), ours, and CRC-32, the zip format's, by the CPU's instructions where there are some.

#include <cstddef>
#include <cstdint>
#include <span>

namespace meshard {

/// Local. The checksum of bytes that follow those of checksum `before` (0: none). crc32c("123456789") = 0xe3069283.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// Local. Likewise, of zip records. zip_crc32("123456789") = 0xcbf43926.
std::uint32_t zip_crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace meshard
