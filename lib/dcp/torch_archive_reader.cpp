#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "dcp/dtype_names.h"
#include "dcp/torch_archive.h"
#include "dcp/zip_reader.h"

namespace meshard {
namespace {

using pickle::Value;

[[noreturn]] void refuse_item(const std::string& what, const std::string& why) {
  throw IoError(what + ": " + why);
}

const DtypeName* archive_type(std::string_view module, std::string_view name) {
  auto is_it = [&](const DtypeName& type) { return type.name == name || type.storage == name; };
  auto type = std::ranges::find_if(kDtypeNames, is_it);
  return module != "torch" || type == kDtypeNames.end() || name.empty() ? nullptr : &*type;
}

const DtypeName* archive_type(const Value& global) {
  return global.kind == Value::Kind::Global ? archive_type(global.text(), global.name()) : nullptr;
}

bool of_tensors(std::string_view module, std::string_view name) {
  if (module == "torch._utils") {
    return name == "_rebuild_tensor_v2" || name == "_rebuild_tensor_v3" || name == "_rebuild_parameter";
  }
  if (module == "torch.storage") return name == "UntypedStorage";
  if (module == "collections") return name == "OrderedDict";
  return archive_type(module, name) != nullptr;
}

bool no_global(std::string_view, std::string_view) {
  return false;
}

/// The tensor that a pickle describes, and the key of the record with its storage.
class TensorPickle {
 public:
  TensorPickle(const Value& root, const std::string& what) : what_(what) {
    const Value* tensor = &root;
    if (is_call(root, "_rebuild_parameter")) tensor = &argument(root, 0);
    bool is_v3 = is_call(*tensor, "_rebuild_tensor_v3");
    if (!is_v3 && !is_call(*tensor, "_rebuild_tensor_v2")) unlike();
    read_storage(argument(*tensor, 0), is_v3 ? &argument(*tensor, 6) : nullptr);
    item.storage_offset = integer(argument(*tensor, 1));
    item.sizes = integers(argument(*tensor, 2));
    item.strides = integers(argument(*tensor, 3));
    std::size_t metadata = is_v3 ? 7 : 6;
    if (arguments_of(*tensor).size() > metadata && !is_empty(argument(*tensor, metadata))) {
      refuse_item(what_, "its tensor is a conjugate or negative view; save it resolved");
    }
    check_extent();
  }

  TensorItem item;
  std::string key;

 private:
  [[noreturn]] void unlike() const { refuse_item(what_, "its data.pkl is not that of a plain tensor"); }

  static bool is_empty(const Value& value) {
    return value.kind == Value::Kind::None || (value.kind == Value::Kind::Dict && value.pairs().empty());
  }
  static bool is_call(const Value& value, std::string_view function) {
    return value.kind == Value::Kind::Object && !value.by_newobj &&
           value.items().front().is_global("torch._utils", function);
  }
  const pickle::Items& arguments_of(const Value& call) const {
    auto& arguments = call.items().at(1);
    if (arguments.kind != Value::Kind::Tuple) unlike();
    return arguments.items();
  }
  const Value& argument(const Value& call, std::size_t index) const {
    auto& arguments = arguments_of(call);
    if (index >= arguments.size()) unlike();
    return arguments[index];
  }
  std::int64_t integer(const Value& value) const {
    if (value.kind != Value::Kind::Int || value.wide || value.integer < 0) unlike();
    return value.integer;
  }
  Shape integers(const Value& tuple) const {
    if (tuple.kind != Value::Kind::Tuple || tuple.items().size() > 64) unlike();
    Shape values;
    for (auto& value : tuple.items()) values.push_back(integer(value));
    return values;
  }

  /// ("storage", class, key, device, elements); elements are bytes if the dtype is said elsewhere.
  void read_storage(const Value& persistent, const Value* dtype) {
    if (persistent.kind != Value::Kind::Persistent) unlike();
    auto& id = persistent.items().front();
    if (id.kind != Value::Kind::Tuple || id.items().size() != 5) unlike();
    auto& parts = id.items();
    auto type = archive_type(dtype ? *dtype : parts[1]);
    if (!type || parts[0].text() != "storage" || parts[2].kind != Value::Kind::Text) unlike();
    if (dtype && !parts[1].is_global("torch.storage", "UntypedStorage")) unlike();
    item.dtype = type->dtype;
    key = parts[2].text();
    auto width = dtype ? 1 : static_cast<std::int64_t>(c10::elementSize(item.dtype));
    if (__builtin_mul_overflow(integer(parts[4]), width, &item.data_length)) unlike();
  }

  void check_extent() const {
    if (item.sizes.size() != item.strides.size()) unlike();
    std::int64_t last = item.storage_offset, elements = 1;
    bool absurd = false, empty = std::ranges::count(item.sizes, 0) > 0;
    for (std::size_t d = 0; d < item.sizes.size(); ++d) {
      std::int64_t reach = 0;
      if (item.sizes[d] == 0) continue;
      absurd = absurd || __builtin_mul_overflow(item.sizes[d] - 1, item.strides[d], &reach) ||
               __builtin_add_overflow(last, reach, &last) || __builtin_mul_overflow(elements, item.sizes[d], &elements);
    }
    auto width = static_cast<std::int64_t>(c10::elementSize(item.dtype));
    if (absurd || (!empty && last >= item.data_length / width)) {
      refuse_item(what_, fmt::format("sizes [{}] and strides [{}] from element {} leave a storage of {} bytes",
                                     fmt::join(item.sizes, ", "), fmt::join(item.strides, ", "), item.storage_offset,
                                     item.data_length));
    }
    // PyTorch copies what is expanded before it saves it; believed, a few bytes would ask for any amount of memory.
    if (!empty && elements > item.data_length / width) {
      refuse_item(what_, fmt::format("its {} elements share a storage of {} bytes", elements, item.data_length));
    }
  }

  const std::string& what_;
};
}  // namespace

TensorItem read_tensor_item(const ReadableFile& file, const ItemPlace& place, const std::string& what) {
  ZipReader archive(file, place, what);
  TensorPickle tensor(pickle::read(archive.pickled(), what, of_tensors), what);
  auto data = archive.find("data/" + tensor.key);
  if (!data) refuse_item(what, "its archive has no data/" + tensor.key);
  if (data->length != tensor.item.data_length) {
    refuse_item(what,
                fmt::format("its storage has {} bytes, its data.pkl says {}", data->length, tensor.item.data_length));
  }
  tensor.item.data_offset = place.offset + archive.data_of(*data);
  return tensor.item;
}

void require_chunk(const TensorItem& item, const TensorEntry& entry, const Box& box, const std::string& what) {
  if (item.sizes == box.sizes && item.dtype == entry.dtype) return;
  refuse_item(what, fmt::format("the item is [{}] of {}, .metadata says [{}] of {}", fmt::join(item.sizes, ", "),
                                c10::toString(item.dtype), fmt::join(box.sizes, ", "), c10::toString(entry.dtype)));
}

CheckedItem check_item(const ReadableFile& file, const ItemPlace& place, const std::string& what) {
  ZipReader archive(file, place, what);
  CheckedItem checked{0, archive.has_checksums()};
  for (auto& record : archive.records()) {
    checked.bytes += record.length;
    if (checked.has_checksums) {
      archive.check(record);
    } else {
      archive.data_of(record);
    }
  }
  return checked;
}

Value read_value_item(const ReadableFile& file, const ItemPlace& place, const std::string& what) {
  return pickle::read(ZipReader(file, place, what).pickled(), what, no_global);
}

}  // namespace meshard
