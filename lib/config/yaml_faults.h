#pragma once
// Why a text is no YAML, in words: yaml-cpp's own messages name what its parser expected, not what the user wrote.

#include <yaml-cpp/exceptions.h>

#include <optional>
#include <string>
#include <string_view>

namespace meshard {

struct TextFault {
  int line = 1, column = 1;  ///< from 1; a column counts bytes, as yaml-cpp's do
  std::string what;
};

/// Local. The first byte that no YAML may hold, if there is one: what is not UTF-8 (yaml-cpp lets it pass, and no JSON
/// takes it), or a control character but tab and line ends (yaml-cpp stops reading at some, in silence).
std::optional<TextFault> foreign_byte(std::string_view text);

/// Local. What made yaml-cpp give up on `text`, where it is: a tab that indents, nesting too deep, a text in need of
/// quotes; else what yaml-cpp said, at the place that it named.
TextFault explain(const YAML::Exception& error, std::string_view text);

/// Local. Whether a `#` in `value` begins a comment.
bool has_comment(std::string_view value);

}  // namespace meshard
