#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/json_text.h"
#include "hf/safetensors.h"

namespace meshard {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

using ItemOrder = std::vector<std::size_t>;  // indices of items

std::span<const std::byte> text_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

void check_items(const std::vector<SafetensorsItem>& items) {
  std::set<std::string> names;
  for (auto& item : items) {
    if (item.name == "__metadata__" || !names.insert(item.name).second) {
      throw ArgumentError(fmt::format("two tensors to write are called `{}`, or the format reserves it", item.name));
    }
    if (safetensors_name(item.dtype) == nullptr) {
      throw ArgumentError(fmt::format("`{}`: safetensors has no {}", item.name, c10::toString(item.dtype)));
    }
  }
}

std::vector<ItemOrder> cut_into_shards(const std::vector<SafetensorsItem>& items, std::int64_t shard_bytes) {
  std::vector<ItemOrder> shards(1);
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!shards.back().empty() && filled + items[i].bytes() > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(i);
    filled += items[i].bytes();
  }
  for (auto& shard : shards) {
    std::ranges::stable_sort(shard, std::greater{}, [&](std::size_t i) { return c10::elementSize(items[i].dtype); });
  }
  return shards;
}

std::string shard_name(std::size_t shard, std::size_t count) {
  return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, count);
}

/// Length and JSON, with blanks so that the data begins on a multiple of 8.
std::string header_of(const std::vector<SafetensorsItem>& items, const ItemOrder& order) {
  Json header{{"__metadata__", {{"format", "pt"}}}};
  std::int64_t begin = 0;
  for (auto i : order) {
    auto end = begin + items[i].bytes();
    header[items[i].name] = {
        {"dtype", safetensors_name(items[i].dtype)}, {"shape", items[i].shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  auto text = json_text(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

void append_values(WritableFile& file, const SafetensorsItem& item, const at::Tensor& values) {
  if (!values.is_cpu() || !values.is_contiguous() || values.scalar_type() != item.dtype ||
      values.sizes() != item.shape) {
    throw ShapeError(fmt::format("`{}` was announced as {} [{}] but is {} [{}], or not contiguous on the host",
                                 item.name, c10::toString(item.dtype), fmt::join(item.shape, ", "),
                                 c10::toString(values.scalar_type()), fmt::join(values.sizes(), ", ")));
  }
  file.append({static_cast<const std::byte*>(values.const_data_ptr()), static_cast<std::size_t>(item.bytes())});
}

std::string index_of(const std::vector<SafetensorsItem>& items, const std::vector<ItemOrder>& shards) {
  std::int64_t total = 0;
  std::map<std::string, std::string> places;
  for (std::size_t shard = 0; shard < shards.size(); ++shard) {
    for (auto i : shards[shard]) {
      total += items[i].bytes();
      places[items[i].name] = shard_name(shard, shards.size());
    }
  }
  return json_text(Json{{"metadata", {{"total_size", total}}}, {"weight_map", places}}, 2) + "\n";
}

fs::path without_last_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

std::int64_t SafetensorsItem::bytes() const {
  return std::accumulate(shape.begin(), shape.end(), static_cast<std::int64_t>(c10::elementSize(dtype)),
                         std::multiplies{});
}

void write_safetensors(FileSystem& files, const fs::path& out, const std::vector<SafetensorsItem>& items,
                       const std::function<at::Tensor(std::size_t index)>& values,
                       const std::map<std::string, std::string>& small_files, std::int64_t shard_bytes) {
  check_items(items);
  auto folder = without_last_slash(out), partial = fs::path(folder.string() + ".partial");
  if (files.exists(folder)) {
    throw ConfigError(fmt::format("{} is there already; name a new folder, or remove it first", folder.string()));
  }
  files.remove_all(partial);
  files.make_folder(partial);
  try {
    auto shards = cut_into_shards(items, shard_bytes);
    for (std::size_t shard = 0; shard < shards.size(); ++shard) {
      auto file = files.create(partial / shard_name(shard, shards.size()));
      file->append(text_bytes(header_of(items, shards[shard])));
      for (auto i : shards[shard]) append_values(*file, items[i], values(i));
      file->sync();
      file->close();
    }
    if (shards.size() > 1) {
      write_file(files, partial / "model.safetensors.index.json", text_bytes(index_of(items, shards)));
    }
    for (auto& [name, text] : small_files) write_file(files, partial / name, text_bytes(text));
    files.sync_folder(partial);
    files.rename(partial, folder);
  } catch (...) {
    try {
      files.remove_all(partial);
    } catch (const IoError&) {
      // The first failure is the one to hear of; the next export removes what this one left.
    }
    throw;
  }
  files.sync_folder(folder.has_parent_path() ? folder.parent_path() : ".");
}

}  // namespace meshard
