#pragma once
// A small file that is there whole or not at all.

#include <filesystem>
#include <string_view>

namespace meshard {

/// Local. Writes `text` to a new name beside `file`, then renames it: a reader, or a crash, finds the old file or the
/// new one. A link is followed; a device or a pipe is written to as it is. Throws IoError, naming the file and the
/// reason; the old file stays as it was.
void write_whole_file(const std::filesystem::path& file, std::string_view text);

}  // namespace meshard
