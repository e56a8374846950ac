#include "base/whole_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>

#include "base/error.h"

namespace meshard {

void write_whole_file(const std::filesystem::path& file, std::string_view text) {
  auto partial = file;
  partial += ".partial";
  std::ofstream stream(partial, std::ios::binary);
  stream << text;
  stream.close();
  std::error_code failed;
  if (!stream) failed = std::error_code(errno, std::generic_category());
  if (!failed) std::filesystem::rename(partial, file, failed);
  if (!failed) return;
  std::error_code ignored;
  std::filesystem::remove(partial, ignored);
  throw IoError(fmt::format("cannot write {}: {}", file.string(), failed.message()));
}

}  // namespace meshard
