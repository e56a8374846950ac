#include "moe/routing_file.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace meshard {

namespace {

static_assert(std::endian::native == std::endian::little, "routing files are little-endian");

constexpr std::size_t kRoutingHeader = 4096;
constexpr std::int64_t kMostRoutingExperts = 65534;
constexpr const char* kRoutingMagic = "meshard routing 1";

using RoutingField = std::pair<const char*, std::int64_t RoutingShape::*>;
constexpr std::array<RoutingField, 5> kRoutingFields = {{{"layers", &RoutingShape::layers},
                                                         {"experts", &RoutingShape::experts},
                                                         {"top_k", &RoutingShape::top_k},
                                                         {"seq_len", &RoutingShape::seq_len},
                                                         {"global_batch_size", &RoutingShape::global_batch_size}}};

class RoutingFile {
 public:
  RoutingFile(std::filesystem::path path, int flags) : path_(std::move(path)) {
    do fd_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0644);
    while (fd_ < 0 && errno == EINTR);
    if (fd_ < 0) throw failed("open", "");
  }
  ~RoutingFile() { ::close(fd_); }
  RoutingFile(const RoutingFile&) = delete;
  RoutingFile& operator=(const RoutingFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

  void write(const void* data, std::size_t size, std::size_t offset, const std::string& place) const {
    auto* bytes = static_cast<const char*>(data);
    for (std::size_t done = 0; done < size;) {
      auto count = ::pwrite(fd_, bytes + done, size - done, static_cast<off_t>(offset + done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw failed("write", place);
      done += static_cast<std::size_t>(count);
    }
  }

  /// Bytes read; fewer than `size` at the end of the file.
  std::size_t read(void* data, std::size_t size, std::size_t offset, const std::string& place) const {
    auto* bytes = static_cast<char*>(data);
    std::size_t done = 0;
    while (done < size) {
      auto count = ::pread(fd_, bytes + done, size - done, static_cast<off_t>(offset + done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw failed("read", place);
      if (count == 0) break;
      done += static_cast<std::size_t>(count);
    }
    return done;
  }

 private:
  IoError failed(const char* doing, const std::string& place) const {
    int reason = errno;
    bool full = reason == ENOSPC || reason == EDQUOT;
    return IoError(fmt::format("cannot {} the routing file {}{}: {}{}", doing, path_.string(), place,
                               std::strerror(reason),
                               full ? "; the disk is full: free space there or choose another file for "
                                      "regression.record_routing"
                                    : ""));
  }

  std::filesystem::path path_;
  int fd_ = -1;
};

RoutingShape read_routing_shape(const RoutingFile& file) {
  std::string text(kRoutingHeader, '\0');
  auto refuse = [&](const std::string& why) {
    return ConfigError(
        fmt::format("{} is not a routing file ({}); regression.replay_routing takes one that a run "
                    "with regression.record_routing wrote",
                    file.path().string(), why));
  };
  auto size = file.read(text.data(), text.size(), 0, "");
  if (size < kRoutingHeader) throw refuse(fmt::format("{} bytes, its header alone has {}", size, kRoutingHeader));

  std::istringstream in(text);
  std::string line, name;
  std::getline(in, line);
  if (line != kRoutingMagic) throw refuse(fmt::format("it does not begin with \"{}\"", kRoutingMagic));
  RoutingShape shape;
  for (auto& [field, member] : kRoutingFields) {
    if (!(in >> name >> shape.*member) || name != field || shape.*member < 1) {
      throw refuse(fmt::format("its header has no valid {}", field));
    }
  }
  return shape;
}

/// A file that fits `shape`; the batch size may differ.
RoutingShape match_routing_shape(const RoutingFile& file, const RoutingShape& shape) {
  auto found = read_routing_shape(file);
  std::vector<std::string> differences;
  for (auto& [field, member] : kRoutingFields) {
    if (member == &RoutingShape::global_batch_size || found.*member == shape.*member) continue;
    differences.push_back(fmt::format("{} {} in the file, {} in this run", field, found.*member, shape.*member));
  }
  if (differences.empty()) return found;
  throw ConfigError(fmt::format("the routing file {} is of another model: {}; use a file of the same model and seq_len",
                                file.path().string(), fmt::join(differences, "; ")));
}

/// What recording and replaying share: the file, and one block per (position, layer).
class RoutingFileTap : public RoutingTap {
 public:
  RoutingFileTap(const std::filesystem::path& file, const RoutingShape& shape, int flags)
      : file_(file, flags), shape_(match_routing_shape(file_, shape)) {}

 protected:
  void check(int layer, const at::Tensor& ids) const {
    if (samples_ == 0) throw LogicError("RoutingTap::pass before RoutingTap::begin");
    if (layer < 0 || layer >= shape_.layers) {
      throw ArgumentError(fmt::format("RoutingTap: layer {} of {}", layer, shape_.layers));
    }
    if (ids.dim() != 2 || ids.size(0) != samples_ * shape_.seq_len || ids.size(1) != shape_.top_k ||
        ids.scalar_type() != at::kLong || !ids.is_cpu()) {
      throw ShapeError(fmt::format("RoutingTap: ids must be int64 [{}, {}] on the host, not [{}] of {}",
                                   samples_ * shape_.seq_len, shape_.top_k, fmt::join(ids.sizes(), ", "),
                                   at::toString(ids.scalar_type())));
    }
  }

  std::size_t block_ids() const { return static_cast<std::size_t>(shape_.seq_len * shape_.top_k); }
  std::size_t block_bytes() const { return block_ids() * sizeof(std::uint16_t); }
  std::size_t offset(std::int64_t position, int layer) const {
    return kRoutingHeader + static_cast<std::size_t>(position * shape_.layers + layer) * block_bytes();
  }
  std::string place(std::int64_t position, int layer) const {
    return fmt::format(", position {} (step {}), MoE layer {}", position, position / shape_.global_batch_size + 1,
                       layer);
  }

  RoutingFile file_;
  RoutingShape shape_;
};

class RoutingRecorder : public RoutingFileTap {
 public:
  RoutingRecorder(const std::filesystem::path& file, const RoutingShape& shape) : RoutingFileTap(file, shape, O_RDWR) {}

  at::Tensor pass(int layer, at::Tensor ids) override {
    check(layer, ids);
    auto held = ids.contiguous();
    auto* next = held.const_data_ptr<std::int64_t>();
    std::vector<std::uint16_t> block(block_ids());
    for (auto position = first_; position < first_ + samples_; ++position) {
      for (auto& stored : block) {
        auto id = *next++;
        if (id < 0 || id >= shape_.experts) {
          throw ArgumentError(
              fmt::format("RoutingTap: id {} of {} experts{}", id, shape_.experts, place(position, layer)));
        }
        stored = static_cast<std::uint16_t>(id + 1);
      }
      file_.write(block.data(), block_bytes(), offset(position, layer), place(position, layer));
    }
    return ids;
  }
};

class RoutingReplayer : public RoutingFileTap {
 public:
  RoutingReplayer(const std::filesystem::path& file, const RoutingShape& shape)
      : RoutingFileTap(file, shape, O_RDONLY) {}

  at::Tensor pass(int layer, at::Tensor ids) override {
    check(layer, ids);
    auto replayed = at::empty(ids.sizes(), at::kLong);
    auto* next = replayed.mutable_data_ptr<std::int64_t>();
    std::vector<std::uint16_t> block(block_ids());
    for (auto position = first_; position < first_ + samples_; ++position) {
      read_block(block, position, layer);
      for (auto stored : block) {
        if (stored == 0) throw unrecorded(position, layer);
        if (stored > shape_.experts) {
          throw IoError(fmt::format("the routing file {} is damaged{}: expert {} of {}; record it again",
                                    file_.path().string(), place(position, layer), stored - 1, shape_.experts));
        }
        *next++ = stored - 1;
      }
    }
    return replayed;
  }

 private:
  void read_block(std::vector<std::uint16_t>& block, std::int64_t position, int layer) const {
    auto size = file_.read(block.data(), block_bytes(), offset(position, layer), place(position, layer));
    if (size == 0) throw unrecorded(position, layer);
    if (size < block_bytes()) {
      throw IoError(fmt::format("the routing file {} is cut off{}: {} of {} bytes; record it again",
                                file_.path().string(), place(position, layer), size, block_bytes()));
    }
  }

  IoError unrecorded(std::int64_t position, int layer) const {
    return IoError(
        fmt::format("the routing file {} has no choice for{}, with {} samples a step as recorded; replay no "
                    "more samples than were recorded, or record a longer run",
                    file_.path().string(), place(position, layer).substr(1), shape_.global_batch_size));
  }
};

}  // namespace

void RoutingTap::begin(std::int64_t first, std::int64_t samples) {
  if (first < 0 || samples < 1) {
    throw ArgumentError(fmt::format("RoutingTap: {} samples from position {}", samples, first));
  }
  first_ = first;
  samples_ = samples;
}

std::unique_ptr<RoutingTap> record_routing(const std::filesystem::path& file, const RoutingShape& shape) {
  return std::make_unique<RoutingRecorder>(file, shape);
}

std::unique_ptr<RoutingTap> replay_routing(const std::filesystem::path& file, const RoutingShape& shape) {
  return std::make_unique<RoutingReplayer>(file, shape);
}

std::int64_t recorded_positions(const std::filesystem::path& file, const RoutingShape& shape) {
  std::error_code failed;
  auto size = std::filesystem::file_size(file, failed);
  if (failed) throw IoError(fmt::format("cannot read the routing file {}: {}", file.string(), failed.message()));
  auto per_position = shape.layers * shape.seq_len * shape.top_k * static_cast<std::int64_t>(sizeof(std::uint16_t));
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(size - kRoutingHeader) / per_position);
}

std::string recording_problem(const std::filesystem::path& file, const RoutingShape& shape) {
  namespace fs = std::filesystem;
  if (shape.experts > kMostRoutingExperts) {
    return fmt::format("a routing file holds at most {} experts, this model has {}", kMostRoutingExperts,
                       shape.experts);
  }
  auto folder = fs::absolute(file).parent_path();
  if (!fs::is_directory(folder))
    return fmt::format("cannot write {}: there is no folder {}", file.string(), folder.string());
  if (!fs::exists(file)) return "";
  std::string begin(std::strlen(kRoutingMagic), '\0');
  if (fs::is_regular_file(file)) std::ifstream(file).read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin == kRoutingMagic ? "" : fmt::format("{} is there already and is not a routing file", file.string());
}

void create_routing_file(const std::filesystem::path& file, const RoutingShape& shape) {
  if (shape.experts > kMostRoutingExperts) {
    throw ArgumentError(
        fmt::format("a routing file holds at most {} experts, not {}", kMostRoutingExperts, shape.experts));
  }
  auto header = fmt::format("{}\n", kRoutingMagic);
  for (auto& [field, member] : kRoutingFields) header += fmt::format("{} {}\n", field, shape.*member);
  header.resize(kRoutingHeader, '\0');
  RoutingFile(file, O_WRONLY | O_CREAT | O_TRUNC).write(header.data(), header.size(), 0, "");
}

}  // namespace meshard
