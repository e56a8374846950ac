#include "hf/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json_text.h"
#include "dcp/torch_archive.h"

namespace meshard {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

using nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kLongestHeader = 100'000'000;  // what the reference library takes
constexpr int kDeepestJson = 3;
constexpr std::int64_t kCompareBlock = 8 << 20;
constexpr const char* kDamaged = " is damaged or no safetensors file";
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

constexpr std::array<std::pair<const char*, at::ScalarType>, 15> kDtypes = {{{"F32", at::kFloat},
                                                                             {"BF16", at::kBFloat16},
                                                                             {"F16", at::kHalf},
                                                                             {"F64", at::kDouble},
                                                                             {"I64", at::kLong},
                                                                             {"I32", at::kInt},
                                                                             {"I16", at::kShort},
                                                                             {"I8", at::kChar},
                                                                             {"U8", at::kByte},
                                                                             {"BOOL", at::kBool},
                                                                             {"U16", at::kUInt16},
                                                                             {"U32", at::kUInt32},
                                                                             {"U64", at::kUInt64},
                                                                             {"F8_E4M3", at::kFloat8_e4m3fn},
                                                                             {"F8_E5M2", at::kFloat8_e5m2}}};

IoError damaged(const std::string& what, const std::string& why) {
  return IoError(fmt::format("{}{}: {}", what, kDamaged, why));
}

json read_object(std::span<const std::byte> bytes, const std::string& what) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  auto root = read_json<json>(text, what + kDamaged, {.depth = kDeepestJson});
  if (!root.is_object()) throw damaged(what, "its JSON is no object");
  return root;
}

/// A list of sizes or offsets; nothing if it is something else.
std::optional<Shape> sizes_in(const json& fields, const char* name) {
  auto found = fields.find(name);
  if (found == fields.end() || !found->is_array()) return {};
  Shape sizes;
  for (auto& size : *found) {
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) return {};
    sizes.push_back(size.get<std::int64_t>());
  }
  return sizes;
}

std::optional<std::int64_t> bytes_of(at::ScalarType dtype, const Shape& shape) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  for (auto size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return {};
  }
  return bytes;
}

SafetensorsEntry entry_of(const json& fields, std::int64_t data, std::int64_t data_bytes, const std::string& what) {
  if (!fields.is_object()) throw damaged(what, "its entry is no object");
  auto dtype = fields.find("dtype");
  auto known =
      std::ranges::find_if(kDtypes, [&](const auto& entry) { return dtype != fields.end() && *dtype == entry.first; });
  if (known == kDtypes.end()) {
    throw IoError(fmt::format("{} has dtype {}, which is not read here", what,
                              dtype == fields.end() ? "(none)" : json_text(*dtype)));
  }
  auto shape = sizes_in(fields, "shape");
  if (!shape) throw damaged(what, "its shape is no list of sizes");
  auto offsets = sizes_in(fields, "data_offsets");
  if (!offsets || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1]) {
    throw damaged(what, "its data_offsets are not [begin, end]");
  }
  auto begin = (*offsets)[0], end = (*offsets)[1];
  if (end > data_bytes) {
    throw damaged(what, fmt::format("its data ends at byte {} of {}: was the file cut off?", end, data_bytes));
  }
  if (bytes_of(known->second, *shape) != end - begin) {
    throw damaged(
        what, fmt::format("[{}] of {} does not fit its {} bytes", fmt::join(*shape, ", "), known->first, end - begin));
  }
  return {"", known->second, *shape, data + begin, end - begin};
}

void require_tiling(const std::map<std::string, SafetensorsEntry>& tensors, std::int64_t data, std::int64_t size,
                    const std::string& what) {
  std::vector<std::pair<const std::string*, const SafetensorsEntry*>> sorted;
  for (auto& [name, entry] : tensors) sorted.emplace_back(&name, &entry);
  std::ranges::sort(sorted, {}, [](const auto& item) { return std::pair(item.second->offset, item.second->length); });
  for (auto& [name, entry] : sorted) {
    if (entry->offset != data) {
      throw damaged(
          what, fmt::format("{} `{}`", entry->offset < data ? "data overlaps before" : "there is a gap before", *name));
    }
    data += entry->length;
  }
  if (data != size) throw damaged(what, fmt::format("{} bytes after the last tensor", size - data));
}

std::string require_plain_name(const std::string& name, const std::string& what) {
  if (name.empty() || name == "." || name == ".." ||
      name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
    throw IoError(fmt::format("{} refers to the file {}; only files next to it are read", what, json_text(json(name))));
  }
  return name;
}

}  // namespace

const char* safetensors_name(at::ScalarType dtype) {
  auto* found = std::ranges::find(kDtypes, dtype, &std::pair<const char*, at::ScalarType>::second);
  return found == kDtypes.end() ? nullptr : found->first;
}

std::map<std::string, SafetensorsEntry> read_safetensors_header(const ReadableFile& file, const std::string& what) {
  auto size = file.size();
  if (size < kLengthBytes) throw damaged(what, fmt::format("it has {} bytes", size));
  std::uint64_t length = 0;
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  auto limit = std::min(kLongestHeader, size - kLengthBytes);
  if (length > static_cast<std::uint64_t>(limit)) {
    throw damaged(what, fmt::format("its header would be {} bytes long, there is room for {}", length, limit));
  }
  std::vector<std::byte> header(length);
  file.read(kLengthBytes, header);

  auto data = kLengthBytes + static_cast<std::int64_t>(length);
  std::map<std::string, SafetensorsEntry> tensors;
  auto root = read_object(header, what);
  for (auto& [name, fields] : root.items()) {
    if (name == "__metadata__") continue;
    tensors[name] = entry_of(fields, data, size - data, fmt::format("tensor `{}` of {}", name, what));
  }
  require_tiling(tensors, data, size, what);
  return tensors;
}

Safetensors::Safetensors(FileSystem& files, std::filesystem::path path) : files_(files), path_(std::move(path)) {
  if (path_.extension() == ".safetensors") {
    folder_ = path_.parent_path();
    open_file(path_.filename().string());
    return;
  }
  folder_ = path_;
  auto index = folder_ / kIndexFile;
  if (files_.exists(folder_ / kSingleFile)) {
    open_file(kSingleFile);
  } else if (files_.exists(index)) {
    open_index(index);
  } else {
    throw IoError(fmt::format("{} has neither {} nor {}; name a folder of a Hugging Face model, or a .safetensors file",
                              folder_.string(), kSingleFile, kIndexFile));
  }
}

void Safetensors::open_file(const std::string& name) {
  auto what = (folder_ / name).string();
  auto& file = open_[name] = files_.open(folder_ / name);
  for (auto& [tensor, entry] : read_safetensors_header(*file, what)) {
    entry.file = name;
    auto [other, is_new] = tensors_.emplace(tensor, std::move(entry));
    if (!is_new) throw IoError(fmt::format("tensor `{}` is in {} and in {}", tensor, other->second.file, what));
  }
}

void Safetensors::open_index(const std::filesystem::path& index) {
  auto what = index.string();
  auto root = read_object(read_file(files_, index, kLongestHeader), what);
  auto map = root.find("weight_map");
  if (map == root.end() || !map->is_object()) throw damaged(what, "it has no weight_map");
  std::map<std::string, std::string> places;
  std::set<std::string> names;
  for (auto& [tensor, file] : map->items()) {
    if (!file.is_string()) throw damaged(what, fmt::format("the file of `{}` is no text", tensor));
    names.insert(places[tensor] = require_plain_name(file.get<std::string>(), what));
  }
  for (auto& name : names) {
    if (!files_.exists(folder_ / name)) {
      throw IoError(
          fmt::format("{} is missing, which {} names; is the download complete?", (folder_ / name).string(), what));
    }
    open_file(name);
  }
  for (auto& [tensor, name] : places) {
    if (!has(tensor) || tensors_[tensor].file != name) {
      throw IoError(fmt::format("{} says that tensor `{}` is in {}: it is not", what, tensor, name));
    }
  }
}

const SafetensorsEntry& Safetensors::entry(const std::string& name) const {
  auto found = tensors_.find(name);
  if (found == tensors_.end()) throw IoError(fmt::format("{} has no tensor `{}`", path_.string(), name));
  return found->second;
}

void Safetensors::read(const std::string& name, const Box& box, at::Tensor into) const {
  auto& tensor = entry(name);
  const bool inside = box.sizes.size() == tensor.shape.size() && box.offsets.size() == tensor.shape.size() &&
                      overlap(box, whole(tensor.shape)) == box;
  if (!inside || into.sizes() != box.sizes) {
    throw ShapeError(fmt::format("tensor `{}` [{}] of {}: cannot read {} into [{}]", name,
                                 fmt::join(tensor.shape, ", "), path_.string(), to_string(box),
                                 fmt::join(into.sizes(), ", ")));
  }
  TensorItem item{tensor.dtype, tensor.shape, Shape(tensor.shape.size()), 0, tensor.offset, tensor.length};
  std::int64_t stride = 1;
  for (auto d = std::ssize(tensor.shape) - 1; d >= 0; --d) {
    item.strides[d] = stride;
    stride *= tensor.shape[d];
  }
  read_box(*open_.at(tensor.file), item, box, std::move(into),
           fmt::format("tensor `{}` of {}", name, (folder_ / tensor.file).string()));
}

std::string Safetensors::text_of(const std::string& name) const {
  if (!files_.exists(folder_ / name)) return "";
  auto bytes = read_file(files_, folder_ / name, kLongestHeader);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool Safetensors::same(const std::string& name, const std::string& other) const {
  auto &a = entry(name), &b = entry(other);
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  std::vector<std::byte> left, right;
  for (std::int64_t done = 0; done < a.length; done += std::ssize(left)) {
    left.resize(static_cast<std::size_t>(std::min(kCompareBlock, a.length - done)));
    right.resize(left.size());
    open_.at(a.file)->read(a.offset + done, left);
    open_.at(b.file)->read(b.offset + done, right);
    if (left != right) return false;
  }
  return true;
}

}  // namespace meshard
