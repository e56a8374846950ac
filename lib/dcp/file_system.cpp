#include "dcp/file_system.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/memory.h"

namespace meshard {
namespace {

namespace fs = std::filesystem;

std::string free_space(const fs::path& path) {
  std::error_code error;
  auto space = fs::space(path.parent_path().empty() ? "." : path.parent_path(), error);
  return error ? "" : fmt::format("; free space there: {:.1f} MB", static_cast<double>(space.available) / 1e6);
}

[[noreturn]] void os_failure(const char* operation, const fs::path& path, int code) {
  auto full = code == ENOSPC || code == EDQUOT;
  throw IoError(fmt::format("cannot {} {}: {}{}", operation, path.string(), std::generic_category().message(code),
                            full ? free_space(path) : ""));
}

void check_os(const std::error_code& error, const char* operation, const fs::path& path) {
  if (error) os_failure(operation, path, error.value());
}

template <typename Call>
auto retried(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

int open_or_fail(const char* operation, const fs::path& path, int flags) {
  int descriptor = retried([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
  if (descriptor < 0) os_failure(operation, path, errno);
  return descriptor;
}

class PosixWritableFile final : public WritableFile {
 public:
  explicit PosixWritableFile(fs::path path)
      : path_(std::move(path)), descriptor_(open_or_fail("create", path_, O_WRONLY | O_CREAT | O_TRUNC)) {}

  ~PosixWritableFile() override {
    try {
      close();
    } catch (const IoError&) {  // documented: close() first
    }
  }

  void append(std::span<const std::byte> bytes) override {
    if (bytes.size() >= kDirect) {
      flush();
      return write(bytes);
    }
    if (buffer_.size() + bytes.size() > kBuffer) flush();
    if (buffer_.capacity() == 0) buffer_.reserve(kBuffer);
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }

  void sync() override {
    flush();
    if (retried([&] { return ::fsync(descriptor_); }) != 0) os_failure("sync", path_, errno);
  }

  void close() override {
    if (descriptor_ < 0) return;
    int descriptor = std::exchange(descriptor_, -1), code = 0;
    try {
      flush(descriptor);
    } catch (const IoError&) {
      ::close(descriptor);
      throw;
    }
    // Linux has closed it even when it says EINTR: trying again could close another thread's new file.
    if (::close(descriptor) != 0) code = errno;
    if (code != 0 && code != EINTR) os_failure("close", path_, code);
  }

 private:
  static constexpr std::size_t kBuffer = 4 << 20;
  static constexpr std::size_t kDirect = 256 << 10;
  static constexpr off_t kHandOver = 8 << 20;

  void flush() { flush(descriptor_); }

  void flush(int descriptor) {
    auto bytes = std::exchange(buffer_, {});
    write(bytes, descriptor);
    bytes.clear();
    buffer_ = std::move(bytes);
  }

  void write(std::span<const std::byte> bytes) { write(bytes, descriptor_); }

  void write(std::span<const std::byte> bytes, int descriptor) {
    while (!bytes.empty()) {
      auto written = retried([&] { return ::write(descriptor, bytes.data(), bytes.size()); });
      if (written < 0) os_failure("write", path_, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      written_ += written;
    }
    if (written_ - handed_over_ >= kHandOver) {
      // The disk begins while the next items are being summed and copied; sync() has less left to wait for. Advice:
      // what goes wrong with it, sync() tells.
      ::sync_file_range(descriptor, handed_over_, written_ - handed_over_, SYNC_FILE_RANGE_WRITE);
      handed_over_ = written_;
    }
  }

  fs::path path_;
  int descriptor_;
  off_t written_ = 0, handed_over_ = 0;
  std::vector<std::byte> buffer_;
};

class PosixReadableFile final : public ReadableFile {
 public:
  explicit PosixReadableFile(fs::path path)
      : path_(std::move(path)), descriptor_(open_or_fail("open", path_, O_RDONLY | O_NONBLOCK)) {  // a pipe would wait
    struct stat status {};
    int code = ::fstat(descriptor_, &status) != 0 ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
    if (code == 0 && !S_ISREG(status.st_mode)) {
      ::close(descriptor_);
      throw IoError(fmt::format("cannot open {}: no regular file", path_.string()));
    }
    if (code != 0) {
      ::close(descriptor_);
      os_failure("open", path_, code);
    }
    size_ = status.st_size;
  }
  ~PosixReadableFile() override { ::close(descriptor_); }

  std::int64_t size() const override { return size_; }

  void read(std::int64_t offset, std::span<std::byte> into) const override {
    if (offset < 0) throw IoError(fmt::format("cannot read {}: offset {} is negative", path_.string(), offset));
    while (!into.empty()) {
      auto count = retried([&] { return ::pread(descriptor_, into.data(), into.size(), offset); });
      if (count < 0) os_failure("read", path_, errno);
      if (count == 0) {
        throw IoError(
            fmt::format("cannot read {}: it ends before byte {}; it is truncated or its index is of another file",
                        path_.string(), offset + static_cast<std::int64_t>(into.size())));
      }
      offset += count;
      into = into.subspan(static_cast<std::size_t>(count));
    }
  }

 private:
  fs::path path_;
  int descriptor_;
  std::int64_t size_ = 0;
};

class PosixFileSystem final : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const fs::path& path) override {
    return std::make_unique<PosixWritableFile>(path);
  }
  std::unique_ptr<ReadableFile> open(const fs::path& path) override {
    return std::make_unique<PosixReadableFile>(path);
  }

  void make_folder(const fs::path& path) override {
    std::error_code error;
    fs::create_directories(path, error);
    check_os(error, "make folder", path);
  }

  void rename(const fs::path& from, const fs::path& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0)
      os_failure(fmt::format("rename {} to", from.string()).c_str(), to, errno);
  }

  void sync_folder(const fs::path& path) override {
    int descriptor = open_or_fail("open folder", path, O_RDONLY | O_DIRECTORY);
    int code = retried([&] { return ::fsync(descriptor); }) != 0 ? errno : 0;
    ::close(descriptor);
    if (code != 0 && code != EINVAL)
      os_failure("sync folder", path, code);  // EINVAL: this file system has no such thing
  }

  void remove_all(const fs::path& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    check_os(error, "remove", path);
  }

  bool exists(const fs::path& path) override {
    std::error_code error;
    auto status = fs::symlink_status(path, error);
    if (status.type() == fs::file_type::not_found) return false;
    check_os(error, "look for", path);
    return true;
  }

  std::vector<std::string> list(const fs::path& folder) override {
    std::vector<std::string> names;
    std::error_code error;
    fs::directory_iterator entry(folder, error);
    if (error == std::errc::no_such_file_or_directory) return names;
    if (error == std::errc::not_a_directory && !exists(folder)) return names;  // what should hold it is a file
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    check_os(error, "list", folder);
    std::ranges::sort(names);
    return names;
  }
};
}  // namespace

FileSystem& posix_file_system() {
  static PosixFileSystem files;
  return files;
}

std::vector<std::byte> read_file(FileSystem& files, const fs::path& path, std::int64_t limit) {
  auto file = files.open(path);
  if (file->size() > limit) {
    throw IoError(fmt::format("cannot read {}: {} bytes are more than the {} that such a file may have", path.string(),
                              file->size(), limit));
  }
  return within_memory(path.string(), [&] {
    std::vector<std::byte> bytes(static_cast<std::size_t>(file->size()));
    file->read(0, bytes);
    return bytes;
  });
}

void write_file(FileSystem& files, const fs::path& path, std::span<const std::byte> bytes) {
  auto fresh = path;
  fresh += ".tmp";
  auto file = files.create(fresh);
  file->append(bytes);
  file->sync();
  file->close();
  files.rename(fresh, path);
}

}  // namespace meshard
