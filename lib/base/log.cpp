#include "base/log.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/text.h"

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
  auto line = printable(text) + "\n";
  write_whole(stdout, (in_progress_ ? "\r\033[K" : "") + line);
  in_progress_ = false;
  if (file_) write_whole(file_, line);
}

void Log::output(std::string_view text) {
  write_whole(stdout, printable(text));
}

void Log::progress(std::string_view text) {
  if (!speaks_) return;
  in_progress_ = true;
  write_whole(stdout, "\r\033[K" + printable(text));
}

void Log::error(std::string_view text) {
  write_whole(stderr, printable(text) + "\n");
}

}  // namespace meshard
