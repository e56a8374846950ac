#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "checkpoint/metadata.h"
#include "checkpoint/metadata_names.h"
#include "checkpoint/pickle.h"

namespace meshard {
namespace {

using pickle::Items;
using pickle::Pairs;
using pickle::Value;

Value text_of(std::string_view text) {
  return Value::string(std::string(text));
}

Value global_of(std::string_view module, std::string_view name) {
  return Value::global(std::string(module), std::string(name));
}

/// Values that occur thousands of times are made once and shared.
class MetadataWriter {
 public:
  Value metadata(const CheckpointMetadata& metadata, const std::string& checkpoint_id, const std::string& save_id);

 private:
  Value tensor(const TensorEntry& entry) const;
  Value properties(c10::ScalarType dtype) const;
  Value size(const Shape& shape) const;
  Value index(const Value& key, const Value& index, const Value* offset) const;
  Value place(const ItemPlace& place);
  void add_storage(const std::string& key, const TensorEntry& entry, Pairs& storage);
  Value fields(const Value& cls, Pairs state) const { return Value::object(cls, {}, Value::dict(std::move(state))); }

  Value tensor_ = global_of(kMetadataModule, "TensorStorageMetadata");
  Value bytes_ = global_of(kMetadataModule, "BytesStorageMetadata");
  Value chunk_ = global_of(kMetadataModule, "ChunkStorageMetadata");
  Value properties_ = global_of(kMetadataModule, "TensorProperties");
  Value index_ = global_of(kMetadataModule, "MetadataIndex");
  Value info_ = global_of(kStorageModule, "_StorageInfo");
  Value size_ = global_of("torch", "Size");
  Value strided_ = Value::call(global_of("torch.serialization", "_get_layout"), {text_of("torch.strided")});
  Value contiguous_ = Value::call(global_of(kMetadataModule, "_MEM_FORMAT_ENCODING"), {Value::integer_of(0)});
  Value offsets_name_ = text_of("offsets"), sizes_name_ = text_of("sizes"), fqn_name_ = text_of("fqn"),
        index_name_ = text_of("index"), offset_name_ = text_of("offset"), length_name_ = text_of("length"),
        path_name_ = text_of("relative_path");
  std::map<std::string, Value> files_;
};

Value MetadataWriter::size(const Shape& shape) const {
  Items sizes;
  sizes.reserve(shape.size());
  for (auto size : shape) sizes.push_back(Value::integer_of(size));
  return Value::call(size_, {Value::tuple(std::move(sizes))});
}

Value MetadataWriter::properties(c10::ScalarType dtype) const {
  auto known = std::ranges::find(kDtypes, dtype, [](auto& pair) { return pair.second; });
  if (known == std::end(kDtypes)) throw ArgumentError(fmt::format("{} is not a dtype of checkpoints", toString(dtype)));
  auto no = Value::boolean(false);
  return Value::object(properties_, {},
                       Value::tuple({global_of("torch", known->first), strided_, no, contiguous_, no}));
}

Value MetadataWriter::tensor(const TensorEntry& entry) const {
  Items chunks;
  chunks.reserve(entry.chunks.size());
  for (auto& [box, place] : entry.chunks) {
    chunks.push_back(fields(chunk_, {{offsets_name_, size(box.offsets)}, {sizes_name_, size(box.sizes)}}));
  }
  return fields(tensor_, {{text_of("properties"), properties(entry.dtype)},
                          {text_of("size"), size(entry.shape)},
                          {text_of("chunks"), Value::list(std::move(chunks))}});
}

Value MetadataWriter::index(const Value& key, const Value& index, const Value* offset) const {
  Pairs state{{fqn_name_, key}, {index_name_, index}};
  if (offset) state.emplace_back(offset_name_, *offset);
  return fields(index_, std::move(state));
}

Value MetadataWriter::place(const ItemPlace& place) {
  auto [file, is_new] = files_.try_emplace(place.file);
  if (is_new) file->second = text_of(place.file);
  return fields(info_, {{path_name_, file->second},
                        {offset_name_, Value::integer_of(place.offset)},
                        {length_name_, Value::integer_of(place.length)}});
}

void MetadataWriter::add_storage(const std::string& key, const TensorEntry& entry, Pairs& storage) {
  auto name = text_of(key);
  for (std::size_t i = 0; i < entry.chunks.size(); ++i) {
    auto offset = size(entry.chunks[i].box.offsets);
    storage.emplace_back(index(name, Value::integer_of(static_cast<std::int64_t>(i)), &offset),
                         place(entry.chunks[i].place));
  }
}

Value path_value(const std::vector<PathElement>& path) {
  Items elements;
  for (auto& element : path) {
    auto* name = std::get_if<std::string>(&element);
    elements.push_back(name ? text_of(*name) : Value::integer_of(std::get<std::int64_t>(element)));
  }
  return Value::tuple(std::move(elements));
}

Value MetadataWriter::metadata(const CheckpointMetadata& metadata, const std::string& checkpoint_id,
                               const std::string& save_id) {
  Pairs entries, storage, paths;
  for (auto& [key, entry] : metadata.tensors) {
    entries.emplace_back(text_of(key), tensor(entry));
    add_storage(key, entry, storage);
  }
  for (auto& [key, where] : metadata.values) {
    auto name = text_of(key);
    entries.emplace_back(name, Value::object(bytes_, {}, Value::none()));
    storage.emplace_back(index(name, Value::none(), nullptr), place(where));
  }
  for (auto& [key, path] : metadata.paths) paths.emplace_back(text_of(key), path_value(path));
  auto meta = fields(global_of(kMetadataModule, "StorageMeta"), {{text_of("checkpoint_id"), text_of(checkpoint_id)},
                                                                 {text_of("save_id"), text_of(save_id)},
                                                                 {text_of("load_id"), Value::none()},
                                                                 {text_of("modules"), Value::list({})}});
  return fields(global_of(kMetadataModule, "Metadata"),
                {{text_of("state_dict_metadata"), Value::dict(std::move(entries))},
                 {text_of("planner_data"), paths.empty() ? Value::none() : Value::dict(std::move(paths))},
                 {text_of("storage_data"), Value::dict(std::move(storage))},
                 {text_of("storage_meta"), meta},
                 {text_of("version"), text_of(kFormatVersion)}});
}

}  // namespace

std::string encode_metadata(const CheckpointMetadata& metadata, const std::string& checkpoint_id,
                            const std::string& save_id) {
  return pickle::write(MetadataWriter().metadata(metadata, checkpoint_id, save_id));
}

}  // namespace meshard
