#pragma once
// A file system that fails when told to, over one that works: for tests of what a checkpoint survives.

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "dcp/file_system.h"

namespace meshard {

class FaultyFiles final : public FileSystem {
 public:
  enum class Op { Create, Append, Sync, Close, Open, Read, MakeFolder, Rename, SyncFolder, Remove };

  explicit FaultyFiles(FileSystem& files = posix_file_system()) : files_(files) {}

  /// The n-th operation of this kind from now on (1: the next) fails for `reason`; later ones work again.
  void fail(Op op, int nth, std::string reason) { faults_[op] = {nth, std::move(reason)}; }
  /// Files take so many bytes more in all, then the disk is full for good. What fits of an append is written.
  void disk_full_after(std::int64_t bytes) { room_ = bytes; }
  /// After so many more operations that change something the process counts as killed: nothing works any more. Folders
  /// are removed file by file, an operation each, last names first, so that `.metadata` is the last to go.
  void die_after(int operations) { life_ = operations; }
  bool dead() const { return life_ < 0; }
  /// Files seem to end here.
  void short_reads(std::int64_t length) { length_ = length; }
  /// Reads see this bit of files of this name flipped.
  void flip_bit(std::string name, std::int64_t byte, int bit) { flip_ = {std::move(name), byte, bit}; }
  /// Operations of a kind so far.
  int count(Op op) const { return counts_.contains(op) ? counts_.at(op) : 0; }

  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override {
    before(Op::Create, path);
    return std::make_unique<Writable>(*this, path, files_.create(path));
  }
  std::unique_ptr<ReadableFile> open(const std::filesystem::path& path) override {
    before(Op::Open, path);
    return std::make_unique<Readable>(*this, path, files_.open(path));
  }
  void make_folder(const std::filesystem::path& path) override {
    before(Op::MakeFolder, path);
    files_.make_folder(path);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    before(Op::Rename, to);
    files_.rename(from, to);
  }
  void sync_folder(const std::filesystem::path& path) override {
    before(Op::SyncFolder, path);
    files_.sync_folder(path);
  }
  void remove_all(const std::filesystem::path& path) override {
    if (std::filesystem::is_directory(path)) {
      for (auto& name : std::views::reverse(files_.list(path))) remove_all(path / name);
    }
    before(Op::Remove, path);
    files_.remove_all(path);
  }
  bool exists(const std::filesystem::path& path) override { return files_.exists(path); }
  std::vector<std::string> list(const std::filesystem::path& folder) override { return files_.list(folder); }

 private:
  struct Fault {
    int left;
    std::string reason;
  };
  struct Flip {
    std::string name;
    std::int64_t byte = 0;
    int bit = 0;
  };

  class Writable final : public WritableFile {
   public:
    Writable(FaultyFiles& owner, std::filesystem::path path, std::unique_ptr<WritableFile> file)
        : owner_(owner), path_(std::move(path)), file_(std::move(file)) {}
    void append(std::span<const std::byte> bytes) override {
      owner_.before(Op::Append, path_);
      auto fits = std::min<std::int64_t>(std::ssize(bytes), owner_.room_);
      owner_.room_ -= fits;
      file_->append(bytes.first(static_cast<std::size_t>(fits)));
      if (fits < std::ssize(bytes)) refuse(Op::Append, path_, "No space left on device");
    }
    void sync() override {
      owner_.before(Op::Sync, path_);
      file_->sync();
    }
    void close() override {
      owner_.before(Op::Close, path_);
      file_->close();
    }

   private:
    FaultyFiles& owner_;
    std::filesystem::path path_;
    std::unique_ptr<WritableFile> file_;
  };

  class Readable final : public ReadableFile {
   public:
    Readable(FaultyFiles& owner, std::filesystem::path path, std::unique_ptr<ReadableFile> file)
        : owner_(owner), path_(std::move(path)), file_(std::move(file)) {}
    std::int64_t size() const override { return file_->size(); }
    void read(std::int64_t offset, std::span<std::byte> into) const override {
      owner_.before(Op::Read, path_);
      if (offset + std::ssize(into) > owner_.length_) refuse(Op::Read, path_, "it ends before");
      file_->read(offset, into);
      auto& flip = owner_.flip_;
      if (path_.filename() == flip.name && flip.byte >= offset && flip.byte - offset < std::ssize(into)) {
        into[static_cast<std::size_t>(flip.byte - offset)] ^= std::byte{1} << flip.bit;
      }
    }

   private:
    FaultyFiles& owner_;
    std::filesystem::path path_;
    std::unique_ptr<ReadableFile> file_;
  };

  [[noreturn]] static void refuse(Op op, const std::filesystem::path& path, const std::string& reason) {
    static constexpr const char* kNames[] = {"create", "write", "sync",      "close", "open",
                                             "read",   "make",  "rename to", "sync",  "remove"};
    throw IoError(std::string("cannot ") + kNames[static_cast<int>(op)] + " " + path.string() + ": " + reason);
  }

  void before(Op op, const std::filesystem::path& path) {
    ++counts_[op];
    bool changes = op != Op::Open && op != Op::Read;
    if (dead() || (changes && --life_ < 0)) refuse(op, path, "the process was killed");
    auto fault = faults_.find(op);
    if (fault == faults_.end() || --fault->second.left > 0) return;
    auto reason = fault->second.reason;
    faults_.erase(fault);
    refuse(op, path, reason);
  }

  FileSystem& files_;
  std::map<Op, Fault> faults_;
  std::map<Op, int> counts_;
  std::int64_t room_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t length_ = std::numeric_limits<std::int64_t>::max();
  int life_ = std::numeric_limits<int>::max();
  Flip flip_;
};

}  // namespace meshard
