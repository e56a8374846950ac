#include "config/run_path.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace meshard {

std::filesystem::path run_path(const RunConfig& run) {
  return std::filesystem::path(run.dir) / run.name;
}

void set_run_path(RunConfig& run, const std::filesystem::path& folder) {
  auto path = folder.has_filename() ? folder : folder.parent_path();  // a/b/
  if (path.filename() == "." || path.filename() == "..") path = std::filesystem::weakly_canonical(path);  // no names
  if (std::ranges::any_of(path.string(), [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
    throw ConfigError(fmt::format("--run-dir `{}` holds a control character; name a folder of one line",
                                  on_one_line(folder.string())));
  }
  if (!path.has_filename()) {
    throw ConfigError(fmt::format("`{}` is no name of a run folder; give --run-dir a folder", folder.string()));
  }
  run.name = path.filename().string();
  run.dir = path.has_parent_path() ? path.parent_path().string() : ".";
}

}  // namespace meshard
