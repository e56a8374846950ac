#pragma once
// A file system in memory, for tests: what lies in it can be looked at and spoilt, and its disk can be full.

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "dcp/file_system.h"

namespace meshard::test {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(const std::string& text) {
  auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

inline std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class MemoryFile : public ReadableFile {
 public:
  explicit MemoryFile(Bytes bytes) : bytes_(std::move(bytes)) {}
  std::int64_t size() const override { return std::ssize(bytes_); }
  void read(std::int64_t offset, std::span<std::byte> into) const override {
    if (offset < 0 || offset + std::ssize(into) > size()) throw IoError("memory: read beyond the end");
    std::copy_n(bytes_.begin() + offset, into.size(), into.begin());
  }

 private:
  Bytes bytes_;
};

class MemoryFiles : public FileSystem {
 public:
  std::map<std::string, Bytes> files;
  std::set<std::string> folders;
  std::int64_t room = 1 << 30;  ///< bytes that may yet be written

  void put(const std::filesystem::path& path, const std::string& text) { files[path.string()] = bytes_of(text); }
  std::string text(const std::filesystem::path& path) const { return text_of(files.at(path.string())); }

  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override {
    if (!folders.contains(path.parent_path().string())) throw IoError("memory: no folder for " + path.string());
    files[path.string()].clear();
    return std::make_unique<Writer>(*this, path.string());
  }
  std::unique_ptr<ReadableFile> open(const std::filesystem::path& path) override {
    auto found = files.find(path.string());
    if (found == files.end()) throw IoError("memory: no file " + path.string());
    return std::make_unique<MemoryFile>(found->second);
  }
  void make_folder(const std::filesystem::path& path) override { folders.insert(path.string()); }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    auto move = [&](auto& set, auto add) {
      auto old = std::exchange(set, {});
      for (auto& item : old) add(item);
    };
    auto renamed = [&](const std::string& path) {
      return is_in(path, from.string()) ? to.string() + path.substr(from.string().size()) : path;
    };
    move(files, [&](auto& file) { files[renamed(file.first)] = file.second; });
    move(folders, [&](auto& folder) { folders.insert(renamed(folder)); });
  }
  void sync_folder(const std::filesystem::path&) override {}
  void remove_all(const std::filesystem::path& path) override {
    std::erase_if(files, [&](auto& file) { return is_in(file.first, path.string()); });
    std::erase_if(folders, [&](auto& folder) { return is_in(folder, path.string()); });
  }
  bool exists(const std::filesystem::path& path) override {
    return files.contains(path.string()) || folders.contains(path.string());
  }
  std::vector<std::string> list(const std::filesystem::path& folder) override {
    std::vector<std::string> names;
    for (auto& [path, _] : files) {
      if (std::filesystem::path(path).parent_path() == folder) names.push_back(std::filesystem::path(path).filename());
    }
    return names;
  }

 private:
  struct Writer : WritableFile {
    Writer(MemoryFiles& owner, std::string path) : owner(owner), path(std::move(path)) {}
    void append(std::span<const std::byte> bytes) override {
      owner.room -= std::ssize(bytes);
      if (owner.room < 0) throw IoError("cannot write " + path + ": No space left on device");
      auto& content = owner.files.at(path);
      content.insert(content.end(), bytes.begin(), bytes.end());
    }
    void sync() override {}
    void close() override {}
    MemoryFiles& owner;
    std::string path;
  };

  static bool is_in(const std::string& path, const std::string& top) {
    return path == top || path.starts_with(top + "/");
  }
};

/// What a call says that must fail with `Failure`; "accepted" if it does not.
template <typename Failure, typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Failure& error) {
    return error.what();
  }
  return "accepted";
}

inline bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

}  // namespace meshard::test
