#pragma once
// Text that others wrote: config files, file names, checkpoint keys, host names, the environment. It may hold bytes
// that are no UTF-8 (JSON cannot carry them) and control characters (a terminal obeys them).

#include <cstddef>
#include <string>
#include <string_view>

namespace meshard {

/// Local. Offset of the first byte that is not part of well-formed UTF-8 (Unicode 15, table 3-7: no overlong forms, no
/// surrogates, nothing above U+10FFFF); `text.size()` if there is none.
std::size_t first_invalid_utf8(std::string_view text);

/// Local. `text` safe to print: every control character but newline and tab (C0, DEL, C1, the bidirectional
/// overrides, what separates lines or has no width) and every byte that is not well-formed UTF-8 becomes `\x1b`, a code
/// point from DEL on `\u202e` (in JSON, which escapes the lower ones itself, that is the same text). Printable text is
/// returned as it is, so that applying it twice changes nothing.
std::string printable(std::string_view text);

/// Local. The same for text within a line (a key, a name, a cell): newlines and tabs are escaped too, so that it cannot
/// begin a line of its own.
std::string on_one_line(std::string_view text);

}  // namespace meshard
