#include "data/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"

namespace meshard {

namespace {
[[noreturn]] void refuse_folder(const std::filesystem::path& path) {
  throw ConfigError(fmt::format("data.files: {0} is a folder; name the files in it, such as {0}/*.txt", path.string()));
}

[[noreturn]] void refuse_special(const std::filesystem::path& path) {
  throw ConfigError(fmt::format(
      "data.files: {} is not a regular file but a pipe, a device or a socket; copy its data into one", path.string()));
}

std::string start_of_relative(const std::filesystem::path& path) {
  return path.is_absolute() ? "" : fmt::format(" (relative to {})", std::filesystem::current_path().string());
}

std::vector<std::string> matches_of(const std::string& pattern) {
  std::error_code ignored;
  bool is_glob = pattern.find_first_of("*?[") != std::string::npos && !std::filesystem::exists(pattern, ignored);
  if (!is_glob) return {pattern};
  glob_t found{};
  int status = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> names(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status == GLOB_NOMATCH) {
    throw ConfigError(fmt::format("data.files: no file matches {}{}", pattern, start_of_relative(pattern)));
  }
  if (status != 0) throw ConfigError(fmt::format("data.files: cannot look for {}: {}", pattern, std::strerror(errno)));
  std::ranges::sort(names);
  return names;
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};
}  // namespace

void for_each_file(const CorpusOptions& options, const std::function<void(const std::filesystem::path&)>& visit) {
  if (options.files.empty()) throw ConfigError("data.files: empty; name at least one file");
  std::vector<std::pair<std::filesystem::path, std::size_t>> files;  // with the number of its pattern
  std::set<std::filesystem::path> seen;
  auto of_pattern = [&](std::size_t pattern, auto work) {
    try {
      work();
    } catch (const ConfigError& error) {
      auto& before = options.before_messages;
      throw ConfigError((pattern < before.size() ? before[pattern] : "") + error.what());
    }
  };
  for (std::size_t pattern = 0; pattern < options.files.size(); ++pattern) {
    of_pattern(pattern, [&] {
      for (auto& name : matches_of(options.files[pattern])) {
        std::error_code unreadable;  // said, with its reason, where the file is opened
        if (std::filesystem::is_directory(name, unreadable)) refuse_folder(name);
        if (std::filesystem::is_other(name, unreadable)) refuse_special(name);
        std::filesystem::path identity = std::filesystem::weakly_canonical(name, unreadable);
        if (unreadable) identity = name;
        if (seen.insert(identity).second) files.emplace_back(name, pattern);
      }
    });
  }
  for (auto& [path, pattern] : files) {
    of_pattern(pattern, [&] { visit(path); });
  }
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  auto fail = [&](const char* doing) {
    throw ConfigError(fmt::format("data.files: cannot {} {}: {}{}", doing, path.string(), std::strerror(errno),
                                  start_of_relative(path)));
  };
  Descriptor file{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};  // a pipe would wait
  if (file.fd < 0) fail("open");
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) fail("look at");
  if (S_ISDIR(info.st_mode)) refuse_folder(path);
  if (!S_ISREG(info.st_mode)) refuse_special(path);
  if (info.st_size == 0) return;  // mmap refuses a length of 0
  auto size = static_cast<std::size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd, 0);
  if (data == MAP_FAILED) fail("map");
  bytes_ = {static_cast<const unsigned char*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<unsigned char*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

}  // namespace meshard
