#include "base/log.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace meshard {

namespace {
void write_whole(std::FILE* stream, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}
}  // namespace

Log::~Log() {
  if (in_progress_) write_whole(stdout, "\n");
  if (file_) std::fclose(file_);
}

void Log::tee(const std::filesystem::path& file) {
  if (!speaks_) return;
  file_ = std::fopen(file.c_str(), "a");
  if (!file_) throw IoError(fmt::format("cannot write the log {}: {}", file.string(), std::strerror(errno)));
}

void Log::print(std::string_view text) {
  if (!speaks_) return;
  auto line = fmt::format("{}{}\n", in_progress_ ? "\r\033[K" : "", text);
  in_progress_ = false;
  write_whole(stdout, line);
  if (file_) write_whole(file_, fmt::format("{}\n", text));
}

void Log::progress(std::string_view text) {
  if (!speaks_) return;
  in_progress_ = true;
  write_whole(stdout, fmt::format("\r\033[K{}", text));
}

void Log::error(std::string_view text) {
  write_whole(stderr, fmt::format("{}\n", text));
}

}  // namespace meshard
