#pragma once
// The only printer. One Log per process, passed by reference; a rank that is not to speak gets a silent one. What it
// prints may hold text of others (keys, names and values out of files): a terminal obeys none of it, see printable().

#include <cstdio>
#include <filesystem>
#include <string_view>

namespace meshard {

class Log {
 public:
  /// Local. A log that writes to standard output, or nothing at all if `speaks` is false.
  explicit Log(bool speaks = true) : speaks_(speaks) {}
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  /// Local. From now on every line also goes to this file (appended, flushed). Throws IoError if it cannot be opened.
  void tee(const std::filesystem::path& file);

  /// Local. One line (the newline is added), written at once and whole, so that ranks do not mix within a line.
  /// `print("a\nb")` is two lines in one write. Ends a progress line first.
  void print(std::string_view text);

  /// Local. What a command was asked for, on standard output as it is: no line is ended, nothing goes to a file.
  static void output(std::string_view text);

  /// Local. Replaces the current terminal line; not copied to the file.
  void progress(std::string_view text);

  /// Local. One line on standard error, from any rank, whether this log speaks or not.
  static void error(std::string_view text);

  bool speaks() const { return speaks_; }

 private:
  bool speaks_;
  bool in_progress_ = false;
  std::FILE* file_ = nullptr;
};

}  // namespace meshard
