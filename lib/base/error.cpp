#include "base/error.h"

#include <fmt/format.h>

namespace meshard {

Error::Error(ExitCode code, const std::string& message, std::source_location where)
    : std::runtime_error(message), code_(code), where_(where) {}

std::string Error::place() const {
  std::string file = where_.file_name();
  return fmt::format("{}:{}", file.substr(file.find_last_of('/') + 1), where_.line());
}

}  // namespace meshard
