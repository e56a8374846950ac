#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "dcp/dtype_names.h"
#include "dcp/metadata.h"
#include "dcp/metadata_names.h"
#include "dcp/pickle_stream.h"

namespace meshard {
namespace {

using pickle::Value;

Value global_of(std::string_view module, std::string_view name) {
  return Value::global(std::string(module), std::string(name));
}

/// Streams the dataclasses of FORMAT.md section 3: an index has a dozen values for each of its thousands of chunks.
class MetadataWriter {
 public:
  std::string run(const CheckpointMetadata& metadata, const std::string& checkpoint_id, const std::string& save_id);

 private:
  void entries(const CheckpointMetadata& metadata);
  void tensor(const TensorEntry& entry);
  void properties(c10::ScalarType dtype);
  void paths(const CheckpointMetadata& metadata);
  void storage(const CheckpointMetadata& metadata);
  void place(const ItemPlace& place);
  template <class Emit>
  void field(std::string_view name, const Emit& emit) {
    out_.text(name);
    emit();
  }
  void text_field(std::string_view name, std::string_view text) {
    out_.text(name);
    out_.text(text);
  }

  pickle::Stream out_;
  const Value metadata_ = global_of(kMetadataModule, "Metadata");
  const Value storage_meta_ = global_of(kMetadataModule, "StorageMeta");
  const Value tensor_ = global_of(kMetadataModule, "TensorStorageMetadata");
  const Value bytes_ = global_of(kMetadataModule, "BytesStorageMetadata");
  const Value chunk_ = global_of(kMetadataModule, "ChunkStorageMetadata");
  const Value properties_ = global_of(kMetadataModule, "TensorProperties");
  const Value index_ = global_of(kMetadataModule, "MetadataIndex");
  const Value info_ = global_of(kStorageModule, "_StorageInfo");
  const Value strided_ = Value::call(global_of("torch.serialization", "_get_layout"), {Value::string("torch.strided")});
  const Value contiguous_ = Value::call(global_of(kMetadataModule, "_MEM_FORMAT_ENCODING"), {Value::integer_of(0)});
};

void MetadataWriter::properties(c10::ScalarType dtype) {
  auto known = std::ranges::find(kDtypeNames, dtype, &DtypeName::dtype);
  if (known == kDtypeNames.end()) throw ArgumentError(fmt::format("{} is not a dtype of checkpoints", toString(dtype)));
  auto no = Value::boolean(false);
  out_.value(
      Value::object(properties_, {}, Value::tuple({global_of("torch", known->name), strided_, no, contiguous_, no})));
}

void MetadataWriter::tensor(const TensorEntry& entry) {
  out_.object(tensor_, [&] {
    field("properties", [&] { properties(entry.dtype); });
    field("size", [&] { out_.size(entry.shape); });
    field("chunks", [&] {
      out_.list([&] {
        for (auto& chunk : entry.chunks) {
          out_.object(chunk_, [&] {
            field("offsets", [&] { out_.size(chunk.box.offsets); });
            field("sizes", [&] { out_.size(chunk.box.sizes); });
          });
        }
      });
    });
  });
}

void MetadataWriter::entries(const CheckpointMetadata& metadata) {
  out_.dict([&] {
    for (auto& [key, entry] : metadata.tensors) {
      out_.text(key);
      tensor(entry);
    }
    for (auto& [key, _] : metadata.values) {
      out_.text(key);
      out_.value(Value::object(bytes_, {}, Value::none()));
    }
  });
}

void MetadataWriter::place(const ItemPlace& place) {
  out_.object(info_, [&] {
    text_field("relative_path", place.file);
    field("offset", [&] { out_.integer(place.offset); });
    field("length", [&] { out_.integer(place.length); });
  });
}

void MetadataWriter::storage(const CheckpointMetadata& metadata) {
  out_.dict([&] {
    for (auto& [key, entry] : metadata.tensors) {
      for (std::size_t i = 0; i < entry.chunks.size(); ++i) {
        out_.object(index_, [&] {
          text_field("fqn", key);
          field("index", [&] { out_.integer(static_cast<std::int64_t>(i)); });
          field("offset", [&] { out_.size(entry.chunks[i].box.offsets); });
        });
        place(entry.chunks[i].place);
      }
    }
    for (auto& [key, where] : metadata.values) {
      out_.object(index_, [&] {
        text_field("fqn", key);
        field("index", [&] { out_.value(Value::none()); });
      });
      place(where);
    }
  });
}

void MetadataWriter::paths(const CheckpointMetadata& metadata) {
  if (metadata.paths.empty()) return out_.value(Value::none());
  out_.dict([&] {
    for (auto& [key, path] : metadata.paths) {
      pickle::Items elements;
      for (auto& element : path) {
        auto* name = std::get_if<std::string>(&element);
        elements.push_back(name ? Value::string(*name) : Value::integer_of(std::get<std::int64_t>(element)));
      }
      out_.text(key);
      out_.tuple(elements);
    }
  });
}

std::string MetadataWriter::run(const CheckpointMetadata& metadata, const std::string& checkpoint_id,
                                const std::string& save_id) {
  out_.object(metadata_, [&] {
    field("state_dict_metadata", [&] { entries(metadata); });
    field("planner_data", [&] { paths(metadata); });
    field("storage_data", [&] { storage(metadata); });
    field("storage_meta", [&] {
      out_.object(storage_meta_, [&] {
        text_field("checkpoint_id", checkpoint_id);
        text_field("save_id", save_id);
        field("load_id", [&] { out_.value(Value::none()); });
        field("modules", [&] { out_.value(Value::list({})); });
      });
    });
    text_field("version", kFormatVersion);
  });
  return out_.finish();
}

}  // namespace

std::string encode_metadata(const CheckpointMetadata& metadata, const std::string& checkpoint_id,
                            const std::string& save_id) {
  return MetadataWriter().run(metadata, checkpoint_id, save_id);
}

}  // namespace meshard
