#pragma once
// A file of JSON objects, one a line: appended and flushed line by line, so that a killed run loses at most the line it
// was writing.

#include <cstdio>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace meshard {

class JsonLines {
 public:
  /// Local. Opens for appending. A torn last line (no newline: its writer was killed) is ended first, so that the next
  /// line stands alone. Throws IoError, naming the file, if it cannot be opened.
  explicit JsonLines(std::filesystem::path file);
  ~JsonLines();
  JsonLines(const JsonLines&) = delete;
  JsonLines& operator=(const JsonLines&) = delete;

  /// Local. Appends one line and flushes it. NaN and infinity become null, as JSON has no literal for them,
  /// and bytes that are no UTF-8 U+FFFD.
  /// Throws IoError, naming the file and the reason (disk full), if the line did not reach the file.
  void append(const nlohmann::ordered_json& object);

 private:
  std::filesystem::path path_;
  std::FILE* file_;
};

}  // namespace meshard
