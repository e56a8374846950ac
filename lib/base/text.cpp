#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace meshard {

namespace {
struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 0;  // 0: not well-formed
};

/// What a sequence of so many bytes may stand for at least: less is an overlong form.
constexpr std::array<std::uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};

CodePoint decode(std::string_view text) {
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  std::size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || bytes > text.size()) return {};
  std::uint32_t value = byte(0) & (0xffu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3fu);
  }
  bool surrogate = value >= 0xd800 && value < 0xe000;
  return value < kLeast[bytes] || value > 0x10ffff || surrogate ? CodePoint{} : CodePoint{value, bytes};
}

/// Also what a reader does not see, or sees as the end of a line.
bool obeyed_by_terminals(std::uint32_t value) {
  if (value < 0x20) return value != '\n' && value != '\t';
  bool overrides = (value >= 0x202a && value <= 0x202e) || (value >= 0x2066 && value <= 0x2069);
  bool separates = value == 0x2028 || value == 0x2029;
  bool unseen = (value >= 0x200b && value <= 0x200f) || (value >= 0x2060 && value <= 0x2064) || value == 0xfeff;
  return (value >= 0x7f && value < 0xa0) || overrides || separates || unseen;
}
}  // namespace

std::size_t first_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    auto bytes = decode(text.substr(at)).bytes;
    if (bytes == 0) return at;
    at += bytes;
  }
  return at;
}

std::string printable(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  std::size_t copied = 0;  // of `text`, up to here
  for (std::size_t at = 0; at < text.size();) {
    auto [value, bytes] = decode(text.substr(at));
    if (bytes != 0 && !obeyed_by_terminals(value)) {
      at += bytes;
      continue;
    }
    safe += text.substr(copied, at - copied);
    if (bytes == 0) value = static_cast<unsigned char>(text[at]);
    safe += fmt::format(fmt::runtime(bytes == 0 || value < 0x20 ? "\\x{:02x}" : "\\u{:04x}"), value);
    copied = at += std::max<std::size_t>(bytes, 1);
  }
  return safe += text.substr(copied);
}

std::string on_one_line(std::string_view text) {
  std::string line;
  for (char c : printable(text)) {
    if (c == '\n' || c == '\t') {
      line += c == '\n' ? "\\n" : "\\t";
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace meshard
