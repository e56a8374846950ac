#include "dcp/metadata.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "dcp/dtype_names.h"
#include "dcp/metadata_names.h"
#include "dcp/pickle.h"

namespace meshard {
namespace {

using pickle::Value;
using Kind = Value::Kind;

constexpr std::size_t kMostDimensions = 64;  // PyTorch's own limit
constexpr std::size_t kLongestName = 255;    // of a file, on every system

bool allowed_in_metadata(std::string_view module, std::string_view name) {
  auto one_of = [&](auto... names) { return ((name == names) || ...); };
  if (module == kMetadataModule) {
    return one_of("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
                  "TensorProperties", "_MEM_FORMAT_ENCODING", "MetadataIndex", "StorageMeta");
  }
  if (module == kStorageModule) return one_of("_StorageInfo");
  if (module == kOldPropertiesModule) return one_of("TensorProperties", "MEM_FORMAT_ENCODING");
  if (module == "torch") return name == "Size" || std::ranges::count(kDtypeNames, name, &DtypeName::name) > 0;
  if (module == "torch.serialization") return one_of("_get_layout");
  // checkpoint_id
  if (module == "pathlib" || module == "pathlib._local") return one_of("PosixPath", "PurePosixPath", "WindowsPath");
  // Python 3.11.0 to 3.11.3 write an enum as getattr(its class, its name).
  if (module == "builtins" || module == "__builtin__") return one_of("getattr");
  return module == "collections" && one_of("OrderedDict");
}

/// Python's `Metadata` to ours. `where` in messages is the key of an entry.
class MetadataReader {
 public:
  explicit MetadataReader(const std::string& what) : what_(what) {}
  CheckpointMetadata read(const Value& root);

 private:
  [[noreturn]] void fail(const std::string& where, const std::string& reason) const {
    throw IoError(fmt::format("{}: {}: {}", what_, on_one_line(where), reason));
  }
  const Value& state(const Value& object, std::string_view module, std::string_view cls,
                     const std::string& where) const;
  const Value& field(const Value& state, std::string_view name, Kind kind, const std::string& where) const;
  const Value& field(const Value& state, std::string_view name, const std::string& where) const;
  const std::string& text(const Value& value, const std::string& where) const;
  std::int64_t count(const Value& value, const std::string& where) const;
  Shape size(const Value& value, const std::string& where) const;

  c10::ScalarType dtype(const Value& properties, const std::string& where) const;
  TensorEntry tensor(const Value& state, const std::string& where) const;
  Box chunk(const Value& value, const Shape& shape, const std::string& where) const;
  void check_shape(const TensorEntry& entry, const std::string& where) const;
  void read_entries(const Value& entries);
  ItemPlace place(const Value& value, const std::string& where) const;
  ItemPlace& place_of(const Value& index, const std::string& key);
  void read_storage(const Value& storage);
  void read_paths(const Value& paths);
  void finish_chunks();

  const std::string& what_;
  CheckpointMetadata metadata_;
};

const Value& MetadataReader::state(const Value& object, std::string_view module, std::string_view cls,
                                   const std::string& where) const {
  if (object.kind != Kind::Object || !object.items()[0].is_global(module, cls)) fail(where, fmt::format("no {}", cls));
  return object.items()[2];
}

const Value& MetadataReader::field(const Value& state, std::string_view name, const std::string& where) const {
  auto* value = state.find(name);
  if (!value) fail(where, fmt::format("`{}` is missing", name));
  return *value;
}

const Value& MetadataReader::field(const Value& state, std::string_view name, Kind kind,
                                   const std::string& where) const {
  auto& value = field(state, name, where);
  if (value.kind != kind) fail(where, fmt::format("`{}` is of a wrong type", name));
  return value;
}

const std::string& MetadataReader::text(const Value& value, const std::string& where) const {
  if (value.kind != Kind::Text) fail(where, "a name is not text");
  return value.text();
}

std::int64_t MetadataReader::count(const Value& value, const std::string& where) const {
  if (value.kind != Kind::Int || value.wide || value.integer < 0) fail(where, "a size or offset is not a 64-bit count");
  return value.integer;
}

Shape MetadataReader::size(const Value& value, const std::string& where) const {
  if (value.kind != Kind::Size) fail(where, "no torch.Size");
  auto sizes = value.sizes();
  if (sizes.size() > kMostDimensions) {
    fail(where, fmt::format("{} dimensions; tensors have at most {}", sizes.size(), kMostDimensions));
  }
  if (!sizes.empty() && std::ranges::min(sizes) < 0) fail(where, "a size or offset is not a 64-bit count");
  return {sizes.begin(), sizes.end()};
}

c10::ScalarType MetadataReader::dtype(const Value& properties, const std::string& where) const {
  bool old = properties.kind == Kind::Object && properties.items()[0].text() == kOldPropertiesModule;
  auto& fields = state(properties, old ? kOldPropertiesModule : kMetadataModule, "TensorProperties", where).items();
  if (fields.size() < 2) fail(where, "properties without dtype and layout");
  auto known = std::ranges::find_if(kDtypeNames, [&](auto& dtype) { return fields[0].is_global("torch", dtype.name); });
  if (known == kDtypeNames.end()) fail(where, "no dtype");
  bool is_call = fields[1].kind == Kind::Object && fields[1].items()[0].is_global("torch.serialization", "_get_layout");
  auto* layout = is_call && !fields[1].items()[1].items().empty() ? &fields[1].items()[1].items()[0] : nullptr;
  if (!layout || layout->text() != "torch.strided") fail(where, "a layout other than torch.strided");
  return known->dtype;
}

void MetadataReader::check_shape(const TensorEntry& entry, const std::string& where) const {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(entry.dtype));
  for (auto size : entry.shape) {
    if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes)) fail(where, "a shape beyond 64 bits");
  }
}

Box MetadataReader::chunk(const Value& value, const Shape& shape, const std::string& where) const {
  auto& fields = state(value, kMetadataModule, "ChunkStorageMetadata", where);
  Box box{size(field(fields, "offsets", where), where), size(field(fields, "sizes", where), where)};
  bool inside = box.offsets.size() == shape.size() && box.sizes.size() == shape.size();
  for (std::size_t dim = 0; inside && dim < shape.size(); ++dim) {
    inside = box.offsets[dim] <= shape[dim] - box.sizes[dim];
  }
  if (!inside) fail(where, fmt::format("chunk {} is not inside {}", to_string(box), to_string(whole(shape))));
  return box;
}

/// By offsets; at the same ones, chunks without elements come last.
bool comes_before(const ChunkEntry& a, const ChunkEntry& b) {
  auto order = a.box.offsets <=> b.box.offsets;
  return order != 0 ? order < 0 : (a.box.numel() != 0) > (b.box.numel() != 0);
}

TensorEntry MetadataReader::tensor(const Value& state, const std::string& where) const {
  TensorEntry entry{dtype(field(state, "properties", where), where), size(field(state, "size", where), where), {}};
  check_shape(entry, where);
  auto& chunks = field(state, "chunks", Kind::List, where).items();
  entry.chunks.reserve(chunks.size());
  for (auto& value : chunks) entry.chunks.push_back({chunk(value, entry.shape, where), {}});
  std::ranges::sort(entry.chunks, comes_before);
  auto twin = std::ranges::adjacent_find(
      entry.chunks, [](auto& a, auto& b) { return a.box.offsets == b.box.offsets && b.box.numel() != 0; });
  if (twin != entry.chunks.end()) fail(where, fmt::format("two chunks at the place of {}", to_string(twin->box)));
  return entry;
}

void MetadataReader::read_entries(const Value& entries) {
  for (auto& [name, value] : entries.pairs()) {
    auto& key = text(name, "a key");
    if (metadata_.tensors.contains(key) || metadata_.values.contains(key)) fail(key, "listed twice");
    if (value.kind == Kind::Object && value.items()[0].is_global(kMetadataModule, "BytesStorageMetadata")) {
      metadata_.values[key];
    } else {
      metadata_.tensors[key] = tensor(state(value, kMetadataModule, "TensorStorageMetadata", key), key);
    }
  }
}

ItemPlace MetadataReader::place(const Value& value, const std::string& where) const {
  auto& fields = state(value, kStorageModule, "_StorageInfo", where);
  ItemPlace place{text(field(fields, "relative_path", where), where), count(field(fields, "offset", where), where),
                  count(field(fields, "length", where), where)};
  bool plain =
      place.file.size() <= kLongestName && place.file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  if (!plain || place.file.empty() || place.file == "." || place.file == "..") {
    fail(where, "its data are said to lie in a file that is not one of the checkpoint's folder");
  }
  if (place.length > std::numeric_limits<std::int64_t>::max() - place.offset) fail(where, "an end beyond 64 bits");
  auto* transforms = fields.find("transform_descriptors");
  if (transforms && transforms->kind != Kind::None && !transforms->items().empty()) {
    fail(where, "its data are compressed or otherwise transformed; save it without storage extensions");
  }
  return place;
}

/// The entry that an index of storage_data speaks of.
ItemPlace& MetadataReader::place_of(const Value& index, const std::string& key) {
  auto* offset = index.find("offset");
  bool has_offset = offset && offset->kind != Kind::None;
  if (auto value = metadata_.values.find(key); value != metadata_.values.end() && !has_offset) return value->second;
  auto tensor = metadata_.tensors.find(key);
  if (tensor == metadata_.tensors.end() || !has_offset) fail(key, "data without an entry");
  auto& chunks = tensor->second.chunks;
  auto offsets = size(*offset, key);
  auto chunk = std::ranges::lower_bound(chunks, offsets, {}, [](auto& entry) -> auto& { return entry.box.offsets; });
  if (chunk == chunks.end() || chunk->box.offsets != offsets) {
    fail(key, fmt::format("data at [{}], where no chunk begins", fmt::join(offsets, ", ")));
  }
  return chunk->place;
}

void MetadataReader::read_storage(const Value& storage) {
  for (auto& [index, value] : storage.pairs()) {
    auto& fields = state(index, kMetadataModule, "MetadataIndex", "storage_data");
    auto& key = text(field(fields, "fqn", "storage_data"), "storage_data");
    auto& mine = place_of(fields, key);
    if (!mine.file.empty()) fail(key, "data listed twice");
    mine = place(value, key);
  }
}

void MetadataReader::read_paths(const Value& paths) {
  for (auto& [name, value] : paths.pairs()) {
    auto& key = text(name, "planner_data");
    if (value.kind != Kind::Tuple) fail(key, "its path in planner_data is not a tuple");
    auto& path = metadata_.paths[key];
    path.clear();
    for (auto& element : value.items()) {
      if (element.kind == Kind::Text) {
        path.emplace_back(element.text());
      } else if (element.kind == Kind::Int && !element.wide) {
        path.emplace_back(element.integer);
      } else {
        fail(key, "its path in planner_data is not of names and numbers");
      }
    }
  }
}

/// PyTorch lists chunks without elements, with or without data; they say nothing.
void MetadataReader::finish_chunks() {
  for (auto& [key, entry] : metadata_.tensors) {
    std::erase_if(entry.chunks, [](auto& chunk) { return chunk.box.numel() == 0; });
    for (auto& chunk : entry.chunks) {
      if (chunk.place.file.empty()) fail(key, fmt::format("chunk {} has no data", to_string(chunk.box)));
    }
  }
  for (auto& [key, place] : metadata_.values) {
    if (place.file.empty()) fail(key, "it has no data");
  }
}

CheckpointMetadata MetadataReader::read(const Value& root) {
  const std::string where = "Metadata";
  auto& fields = state(root, kMetadataModule, "Metadata", where);
  auto* version = fields.find("version");
  if (version && version->kind != Kind::None && !version->text().starts_with("1.")) {
    fail(where, fmt::format("format version `{:.40}`; this version reads 1.x", version->text()));
  }
  read_entries(field(fields, "state_dict_metadata", Kind::Dict, where));
  read_storage(field(fields, "storage_data", Kind::Dict, where));
  auto* paths = fields.find("planner_data");
  if (paths && paths->kind != Kind::None && paths->kind != Kind::Dict) fail(where, "`planner_data` is of a wrong type");
  if (paths) read_paths(*paths);
  finish_chunks();
  return std::move(metadata_);
}

}  // namespace

CheckpointMetadata decode_metadata(std::span<const std::byte> bytes, const std::string& what) {
  return within_memory(what, [&] { return MetadataReader(what).read(pickle::read(bytes, what, allowed_in_metadata)); });
}

}  // namespace meshard
