#include "base/json_lines.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"

namespace meshard {

namespace {
bool ends_torn(const std::filesystem::path& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (!file) return false;
  bool torn = std::fseek(file, -1, SEEK_END) == 0 && std::fgetc(file) != '\n';
  std::fclose(file);
  return torn;
}
}  // namespace

JsonLines::JsonLines(std::filesystem::path path) : path_(std::move(path)) {
  bool torn = ends_torn(path_);
  file_ = std::fopen(path_.c_str(), "a");
  if (!file_) throw IoError(fmt::format("cannot open {} for writing: {}", path_.string(), std::strerror(errno)));
  if (torn) std::fputc('\n', file_);
}

JsonLines::~JsonLines() {
  std::fclose(file_);
}

void JsonLines::append(const nlohmann::ordered_json& object) {
  auto line = json_text(object) + "\n";
  bool written = std::fwrite(line.data(), 1, line.size(), file_) == line.size();
  if (std::fflush(file_) != 0 || !written) {
    throw IoError(fmt::format("cannot write {}: {}; free space there or choose another run.dir", path_.string(),
                              std::strerror(errno)));
  }
}

}  // namespace meshard
