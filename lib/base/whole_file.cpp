#include "base/whole_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>

#include "base/error.h"

namespace meshard {

namespace fs = std::filesystem;

namespace {

std::error_code write_to(const fs::path& file, std::string_view text) {
  errno = 0;
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  stream.close();
  return stream ? std::error_code() : std::error_code(errno, std::generic_category());
}

}  // namespace

void write_whole_file(const fs::path& file, std::string_view text) {
  std::error_code failed, ignored;
  auto target = fs::is_symlink(file, ignored) ? fs::weakly_canonical(file) : file;  // the link stays
  if (fs::exists(target, ignored) && !fs::is_regular_file(target, ignored)) {
    failed = write_to(target, text);  // a device or a pipe must not be replaced
  } else {
    auto partial = target;
    partial += ".partial";
    failed = write_to(partial, text);
    if (!failed) fs::rename(partial, target, failed);
    if (failed) fs::remove(partial, ignored);
  }
  if (failed) throw IoError(fmt::format("cannot write {}: {}", file.string(), failed.message()));
}

}  // namespace meshard
