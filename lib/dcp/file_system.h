#pragma once
// The one seam through which checkpoints touch files, so that tests can inject faults. Errors are IoError with path,
// operation and the system's reason ("No space left on device").

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace meshard {

class WritableFile {
 public:
  virtual ~WritableFile() = default;  ///< closes; errors are lost, so close() first
  virtual void append(std::span<const std::byte> bytes) = 0;
  virtual void sync() = 0;  ///< to the disk
  virtual void close() = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual std::int64_t size() const = 0;
  /// Exactly into.size() bytes from `offset`; IoError if the file ends before.
  virtual void read(std::int64_t offset, std::span<std::byte> into) const = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// A new file; an old one of this name is replaced.
  virtual std::unique_ptr<WritableFile> create(const std::filesystem::path& path) = 0;
  virtual std::unique_ptr<ReadableFile> open(const std::filesystem::path& path) = 0;
  virtual void make_folder(const std::filesystem::path& path) = 0;  ///< with its parents; fine if it is there
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  virtual void sync_folder(const std::filesystem::path& path) = 0;  ///< its entries, to the disk
  virtual void remove_all(const std::filesystem::path& path) = 0;   ///< fine if it is not there
  virtual bool exists(const std::filesystem::path& path) = 0;  ///< also a link that leads nowhere: something is there
  virtual std::vector<std::string> list(const std::filesystem::path& folder) = 0;  ///< names, sorted; none if no folder
};

/// The real one. One object serves all threads.
FileSystem& posix_file_system();

/// Local. A whole small file. IoError beyond `limit` bytes, or what memory holds.
std::vector<std::byte> read_file(FileSystem& files, const std::filesystem::path& path, std::int64_t limit = 1LL << 32);

/// Local. Writes a small file whole and on the disk: to `path`.tmp, synced, then renamed.
void write_file(FileSystem& files, const std::filesystem::path& path, std::span<const std::byte> bytes);

}  // namespace meshard
