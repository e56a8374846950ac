#pragma once
// Files of a corpus: finding them, and reading them without copying. Private to this room.

#include <filesystem>
#include <functional>
#include <span>

#include "data/corpus.h"

namespace meshard {

/// Local. Calls `visit` with each file that the patterns of `options` name: patterns in their order, the matches of
/// each sorted bytewise (whatever the locale), every file once. A pattern that is the name of an existing file is that
/// file, whatever characters it has. Throws ConfigError, naming the pattern, if a glob matches nothing or there is no
/// pattern, and for a folder, before any visit; a plain name is not opened before. A ConfigError about a file begins
/// with what `options` says of its pattern, those of `visit` too.
void for_each_file(const CorpusOptions& options, const std::function<void(const std::filesystem::path&)>& visit);

/// A whole file, mapped read-only: its pages are shared by all ranks of a node. It must not shrink while it is mapped.
class MappedFile {
 public:
  /// Local. Throws ConfigError, naming the file and the reason, if it cannot be read or is a folder.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  /// Local. Empty for an empty file.
  std::span<const unsigned char> bytes() const { return bytes_; }

 private:
  std::span<const unsigned char> bytes_;
};

}  // namespace meshard
