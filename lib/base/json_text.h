#pragma once
// JSON as text, both ways: what others may have written is read within bounds, what is ours is written whatever bytes
// it holds. Nothing else parses or prints JSON.

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace meshard {

/// Trees are copied, compared, printed and walked by recursion, and a tree is larger than its text: both are bounded
/// while reading. Memory, the text not counted, stays below 8 bytes for each byte of it plus 64 MiB.
struct JsonLimits {
  int depth = 64;  ///< of nested arrays and objects
  std::size_t text = std::size_t{256} << 20;
};

/// Local. The value of a JSON text; `Json` is nlohmann::json, or ordered_json, which keeps the order of keys. Throws
/// IoError beginning with `name`, with line and column where there is a place: no JSON (bytes that are no UTF-8 are
/// none, nor are a NUL byte and a byte order mark), a key twice in one object, beyond the limits, no memory.
template <class Json>
Json read_json(std::string_view text, const std::string& name, const JsonLimits& limits = {});

/// Local. The value of a text of which nothing is to be said (a line of many); none where read_json() throws.
template <class Json>
std::optional<Json> read_json_if_sound(std::string_view text, const JsonLimits& limits = {});

/// Local. Reads a file. Besides what read_json() says, IoError: it cannot be read, is no regular file (a pipe would
/// wait) or is longer than limits.text.
template <class Json>
Json read_json_file(const std::filesystem::path& file, const JsonLimits& limits = {});

/// Local. JSON in one line, or with `indent` >= 0 in lines. Never throws for what a text holds: bytes that are no UTF-8
/// become U+FFFD. NaN and infinity become null. printable() of it is the same JSON.
template <class Json>
std::string json_text(const Json& value, int indent = -1);

}  // namespace meshard
