#include "checkpoint/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include "base/json_text.h"
#include "base/text.h"

namespace meshard {

namespace {

using Json = nlohmann::ordered_json;

bool matches(const std::string& key, const std::string& pattern) {
  return pattern.empty() || fnmatch(pattern.c_str(), key.c_str(), 0) == 0;
}

std::int64_t bytes_of(const TensorEntry& entry) {
  return whole(entry.shape).numel() * static_cast<std::int64_t>(c10::elementSize(entry.dtype));
}

Json tensor_json(const std::string& key, const TensorEntry& entry) {
  auto chunks = Json::array();
  for (auto& chunk : entry.chunks) {
    chunks.push_back({{"file", chunk.place.file}, {"offsets", chunk.box.offsets}, {"sizes", chunk.box.sizes}});
  }
  return {{"key", key},
          {"dtype", c10::toString(entry.dtype)},
          {"shape", entry.shape},
          {"bytes", bytes_of(entry)},
          {"chunks", std::move(chunks)}};
}

}  // namespace

Json describe_json(const CheckpointReader& reader, const std::string& keys) {
  auto& extra = reader.extra();
  auto fact = [&](const char* name) { return extra.is_null() ? Json() : extra.value(name, Json()); };
  auto tensors = Json::array(), values = Json::array();
  std::int64_t bytes = 0;
  for (auto& [key, entry] : reader.metadata().tensors) {
    bytes += bytes_of(entry);
    if (matches(key, keys)) tensors.push_back(tensor_json(key, entry));
  }
  for (auto& [key, _] : reader.metadata().values) {
    if (matches(key, keys)) values.push_back(key);
  }
  return {{"folder", reader.folder().string()},
          {"writer", extra.is_null() ? "pytorch" : "meshard"},
          {"step", fact("step")},
          {"samples", fact("samples")},
          {"ranks", fact("ranks")},
          {"bytes", bytes},
          {"tensors", std::move(tensors)},
          {"values", std::move(values)},
          {"config", fact("config")}};
}

std::string describe_text(const CheckpointReader& reader, const std::string& keys) {
  auto& metadata = reader.metadata();
  auto& extra = reader.extra();
  std::int64_t bytes = 0;
  for (auto& [_, entry] : metadata.tensors) bytes += bytes_of(entry);
  auto text = extra.is_null()
                  ? fmt::format("{}: written by PyTorch", reader.folder().string())
                  : fmt::format("{}: step {}, {} samples, written by {} ranks", reader.folder().string(),
                                json_text(extra.value("step", Json())), json_text(extra.value("samples", Json())),
                                json_text(extra.value("ranks", Json())));
  text += fmt::format("\n{} tensors, {} values, {} bytes\n", metadata.tensors.size(), metadata.values.size(), bytes);
  for (auto& [key, entry] : metadata.tensors) {
    if (!matches(key, keys)) continue;
    text += fmt::format("  {:<72} {:<9} {:<20} {} chunk{}\n", on_one_line(key), c10::toString(entry.dtype),
                        fmt::format("[{}]", fmt::join(entry.shape, ", ")), entry.chunks.size(),
                        entry.chunks.size() == 1 ? "" : "s");
  }
  for (auto& [key, _] : metadata.values) {
    if (matches(key, keys)) text += fmt::format("  {:<72} value\n", on_one_line(key));
  }
  return text;
}

}  // namespace meshard
