#include "dcp/torch_archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "dcp/crc32c.h"
#include "dcp/dtype_names.h"

namespace meshard {
namespace {

static_assert(std::endian::native == std::endian::little, "zip headers and tensors are written as they lie in memory");

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSinkPiece = 1 << 20;  // checksums and the sink then find it in the cache
constexpr std::uint32_t kFull32 = std::numeric_limits<std::uint32_t>::max();

/// The zip layout of PyTorch's own writer, byte for byte: sizes and checksums follow the data, so that it is one
/// stream.
class ArchiveWriter {
 public:
  explicit ArchiveWriter(const ByteSink& sink) : sink_(sink) {}

  void record(std::string_view name, std::span<const std::byte> contents) {
    Entry entry{fmt::format("archive/{}", name), position(), contents.size(), 0};
    put_header(entry);
    if (contents.size() > kSinkPiece) {
      flush();
      for (; !contents.empty(); contents = contents.subspan(std::min(contents.size(), kSinkPiece))) {
        auto piece = contents.first(std::min(contents.size(), kSinkPiece));
        entry.crc = zip_crc32(piece, entry.crc);
        sink_(piece);
      }
      sent_ += entry.size;
    } else {
      entry.crc = zip_crc32(contents);
      pending_.append(reinterpret_cast<const char*>(contents.data()), contents.size());
    }
    if (entry.size > 0) put_descriptor(entry);
    entries_.push_back(std::move(entry));
  }
  void record(std::string_view name, std::string_view contents) { record(name, std::as_bytes(std::span(contents))); }

  std::int64_t finish() {
    record("version", "3\n");
    record(".data/serialization_id", serialization_id());
    auto directory = position();
    for (auto& entry : entries_) put_directory_entry(entry);
    put_end(directory, position() - directory);
    flush();
    return static_cast<std::int64_t>(sent_);
  }

 private:
  struct Entry {
    std::string name;
    std::uint64_t header, size;
    std::uint32_t crc;
    bool is_large() const { return size >= kFull32; }
    bool is_far() const { return header >= kFull32; }
    bool is_zip64() const { return is_large() || is_far(); }
    std::uint16_t flags() const { return size > 0 ? 0x0808 : 0x0800; }  // UTF-8; sizes after the data
  };

  template <typename... Fields>
  void put(Fields... fields) {
    (pending_.append(reinterpret_cast<const char*>(&fields), sizeof fields), ...);
  }
  template <typename... Fields>
  void put_shorts(Fields... fields) {
    put(static_cast<std::uint16_t>(fields)...);
  }

  static std::uint32_t clipped(std::uint64_t value) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, kFull32));
  }
  static std::size_t zip64_length(const Entry& entry) {
    return entry.is_zip64() ? 4u + (entry.is_large() ? 16u : 0u) + (entry.is_far() ? 8u : 0u) : 0u;
  }
  void put_zip64(const Entry& entry) {
    if (!entry.is_zip64()) return;
    put_shorts(1, zip64_length(entry) - 4);
    if (entry.is_large()) put(entry.size, entry.size);
    if (entry.is_far()) put(entry.header);
  }

  void put_header(const Entry& entry) {
    auto unpadded = entry.header + 30 + entry.name.size() + zip64_length(entry) + 4;
    auto padding = (kAlignment - unpadded % kAlignment) % kAlignment;
    put(std::uint32_t{0x04034b50});
    put_shorts(0, entry.flags(), 0, 0, 0);
    put(std::uint32_t{0}, std::uint32_t{0}, std::uint32_t{0});
    put_shorts(entry.name.size(), zip64_length(entry) + 4 + padding);
    pending_ += entry.name;
    put_zip64(entry);
    pending_ += "FB";
    put_shorts(padding);
    pending_.append(padding, 'Z');
  }

  void put_descriptor(const Entry& entry) {
    put(std::uint32_t{0x08074b50}, entry.crc);
    if (entry.is_zip64()) {
      put(entry.size, entry.size);
    } else {
      put(clipped(entry.size), clipped(entry.size));
    }
  }

  void put_directory_entry(const Entry& entry) {
    put(std::uint32_t{0x02014b50});
    put_shorts(0, 0, entry.flags(), 0, 0, 0);
    put(entry.crc, clipped(entry.size), clipped(entry.size));
    put_shorts(entry.name.size(), zip64_length(entry), 0, 0, 0);
    put(std::uint32_t{0}, clipped(entry.header));
    pending_ += entry.name;
    put_zip64(entry);
  }

  void put_end(std::uint64_t directory, std::uint64_t length) {
    auto end = position();
    auto count = static_cast<std::uint64_t>(entries_.size());
    put(std::uint32_t{0x06064b50}, std::uint64_t{44});
    put_shorts(0x031e, 45);
    put(std::uint32_t{0}, std::uint32_t{0}, count, count, length, directory);
    put(std::uint32_t{0x07064b50}, std::uint32_t{0}, end, std::uint32_t{1});
    put(std::uint32_t{0x06054b50});
    put_shorts(0, 0, count, count);
    put(clipped(length), clipped(directory));
    put_shorts(0);
  }

  std::string serialization_id() const {
    std::string names;
    std::uint64_t contents = 0;
    for (auto& entry : entries_) {
      names += entry.name;
      contents = mix64(contents + entry.crc);
    }
    return fmt::format("{:020}{:020}", hash_text(names), contents);
  }

  std::uint64_t position() const { return sent_ + pending_.size(); }

  void flush() {
    sink_(std::as_bytes(std::span(pending_)));
    sent_ += pending_.size();
    pending_.clear();
  }

  const ByteSink& sink_;
  std::string pending_;
  std::uint64_t sent_ = 0;
  std::vector<Entry> entries_;
};

void begin_archive(ArchiveWriter& archive, const pickle::Value& value) {
  archive.record("data.pkl", pickle::write(value));
  archive.record(".format_version", "1");
  archive.record(".storage_alignment", std::to_string(kAlignment));
  archive.record("byteorder", "little");
}

pickle::Value int_tuple(at::IntArrayRef values) {
  pickle::Items items;
  for (auto value : values) items.push_back(pickle::Value::integer_of(value));
  return pickle::Value::tuple(std::move(items));
}

pickle::Value pickled_tensor(const at::Tensor& tensor, const DtypeName& type) {
  using pickle::Value;
  bool typed = !type.storage.empty();
  auto storage =
      typed ? Value::global("torch", std::string(type.storage)) : Value::global("torch.storage", "UntypedStorage");
  auto length = typed ? tensor.numel() : static_cast<std::int64_t>(tensor.nbytes());
  auto id = Value::tuple({Value::string("storage"), std::move(storage), Value::string("0"), Value::string("cpu"),
                          Value::integer_of(length)});
  pickle::Items arguments = {Value::persistent(std::move(id)),
                             Value::integer_of(0),
                             int_tuple(tensor.sizes()),
                             int_tuple(tensor.strides()),
                             Value::boolean(false),
                             Value::call(Value::global("collections", "OrderedDict"), {})};
  if (!typed) arguments.push_back(Value::global("torch", std::string(type.name)));
  return Value::call(Value::global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3"),
                     std::move(arguments));
}
}  // namespace

std::int64_t write_tensor_item(const at::Tensor& tensor, const ByteSink& sink) {
  if (!tensor.defined() || !tensor.is_cpu() || !tensor.is_contiguous()) {
    throw ArgumentError("an item of a checkpoint is written from a contiguous tensor in host memory");
  }
  auto type = std::ranges::find(kDtypeNames, tensor.scalar_type(), &DtypeName::dtype);
  if (type == kDtypeNames.end()) {
    throw ArgumentError(fmt::format("tensors of {} cannot be written", c10::toString(tensor.scalar_type())));
  }
  ArchiveWriter archive(sink);
  begin_archive(archive, pickled_tensor(tensor, *type));
  archive.record("data/0", {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  return archive.finish();
}

std::int64_t write_value_item(const pickle::Value& value, const ByteSink& sink) {
  ArchiveWriter archive(sink);
  begin_archive(archive, value);
  return archive.finish();
}

}  // namespace meshard
