#pragma once
// A whole checkpoint in memory, for tests: as PyTorch writes one or, with a meshard.json, as Meshard does.

#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/load.h"
#include "dcp/crc32c.h"
#include "support/memory_files.h"
#include "support/torch_items.h"

namespace meshard::test {

/// Tensors in any chunks, and values; `data` and `metadata` can be spoilt before reader().
struct Saved {
  MemoryFiles files;
  CheckpointMetadata metadata;
  std::string data;

  Saved& tensor(const std::string& key, const at::Tensor& values, std::vector<Box> chunks = {}) {
    auto& entry = metadata.tensors[key];
    entry.dtype = values.scalar_type();
    entry.shape = values.sizes().vec();
    if (chunks.empty()) chunks = {whole(entry.shape)};
    for (auto& box : chunks) entry.chunks.push_back({box, place(item_of(part_of(values, box).contiguous()))});
    return *this;
  }
  Saved& value(const std::string& key, const pickle::Value& value) {
    metadata.values[key] = place(item_of(value));
    return *this;
  }
  /// With these facts it is one of Meshard's: meshard.json has them, and every checksum.
  CheckpointReader reader(nlohmann::ordered_json facts = {}) {
    auto index = encode_metadata(metadata, "ck", "id");
    files.put("ck/.metadata", index);
    files.put("ck/data", data);
    files.files.erase("ck/meshard.json");
    if (!facts.is_null()) files.put("ck/meshard.json", signed_text(index, std::move(facts)));
    return {files, "ck"};
  }

  /// Where the first element of a tensor's first chunk lies in `data`.
  std::size_t data_of(const std::string& key) const {
    auto& place = metadata.tensors.at(key).chunks.front().place;
    return static_cast<std::size_t>(read_tensor_item(meshard::MemoryFile(data), place, key).data_offset);
  }
  void flip(std::size_t at) { data[at] = static_cast<char>(data[at] ^ 4); }

 private:
  std::string signed_text(const std::string& index, nlohmann::ordered_json facts) const {
    auto rows = nlohmann::ordered_json::array();
    auto add = [&](const ItemPlace& place) {
      auto bytes = std::string_view(data).substr(static_cast<std::size_t>(place.offset),
                                                 static_cast<std::size_t>(place.length));
      rows.push_back({place.offset, place.length, crc32c(std::as_bytes(std::span(bytes)))});
    };
    for (auto& [_, entry] : metadata.tensors) {
      for (auto& chunk : entry.chunks) add(chunk.place);
    }
    for (auto& [_, place] : metadata.values) add(place);
    auto sum = crc32c(std::as_bytes(std::span(index)));
    facts.update({{"format", 1}, {"metadata_crc32c", sum}, {"items", {{"data", rows}}}});
    auto unsigned_text = facts.dump();
    facts["crc32c"] = crc32c(std::as_bytes(std::span(unsigned_text)));
    return facts.dump();
  }

  ItemPlace place(const std::string& item) {
    ItemPlace place{"data", std::ssize(data), std::ssize(item)};
    data += item;
    return place;
  }
};

}  // namespace meshard::test
