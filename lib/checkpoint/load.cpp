#include "checkpoint/load.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"
#include "dcp/crc32c.h"
#include "dcp/tiling.h"
#include "dcp/torch_archive.h"

namespace meshard {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kNewestFormat = 1;
constexpr std::size_t kListed = 20;
constexpr std::size_t kLongestFileName = 64;  // it is kept with each of its items

std::string shape_text(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void list(std::string& text, const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  text += fmt::format("\n  {} {}:", names.size(), what);
  for (std::size_t i = 0; i < std::min(kListed, names.size()); ++i) text += "\n    " + on_one_line(names[i]);
  if (names.size() > kListed) text += fmt::format("\n    and {} more", names.size() - kListed);
}

/// What no run can have written, whoever signed it. A save of other programs has facts of its own, or none.
void check_facts(const Json& facts, const std::string& path) {
  auto refuse = [&](const char* name, const std::string& expected) {
    throw IoError(fmt::format("{} is damaged: `{}` is {}; expected {}", path, name,
                              json_text(facts[name]).substr(0, 40), expected));
  };
  constexpr auto kMostCounted = std::int64_t{1} << 53, kMostRanks = std::int64_t{std::numeric_limits<int>::max()};
  const std::tuple<const char*, std::int64_t, std::int64_t> kNumbers[] = {
      {"step", 0, kMostCounted}, {"samples", 0, kMostCounted}, {"tokens", 0, kMostCounted}, {"ranks", 1, kMostRanks}};
  for (auto& [name, least, most] : kNumbers) {
    if (!facts.contains(name)) continue;
    auto& fact = facts[name];
    bool sound = fact.is_number_integer() && fact >= least && fact <= most;
    if (!sound) refuse(name, fmt::format("a whole number from {} to {}", least, most));
  }
  for (auto* name : {"fault", "config"}) {
    if (facts.contains(name) && !facts[name].is_string()) refuse(name, "text");
  }
  // A step takes at least one sample, and that one token.
  auto at_least = [&](const char* more, const char* less) {
    if (facts.contains(more) && facts.contains(less) && facts[more] < facts[less]) {
      refuse(more, fmt::format("at least the `{}`, {}", less, json_text(facts[less])));
    }
  };
  at_least("samples", "step");
  at_least("tokens", "samples");
}

}  // namespace

std::string Mismatch::text() const {
  std::string text;
  list(text, "missing in the checkpoint", missing);
  list(text, "in the checkpoint but not wanted", unexpected);
  list(text, "of another shape", shapes);
  list(text, "of a dtype that does not convert", dtypes);
  return text;
}

std::string why_no_checkpoint(FileSystem& files, const std::filesystem::path& folder) {
  auto why = [&]() -> const char* {
    if (folder.extension() == ".partial") return "its save never ended";
    if (files.exists(folder / ".metadata")) return nullptr;
    if (files.exists(folder / "checkpoints")) return "it is a run's folder; its checkpoints are checkpoints/step-*";
    return files.exists(folder) ? "it has no .metadata" : "there is no such folder";
  }();
  return why ? fmt::format("{} is no complete checkpoint: {}", folder.string(), why) : "";
}

CheckpointReader::CheckpointReader(FileSystem& files, std::filesystem::path folder)
    : files_(files), folder_(std::move(folder)) {
  if (auto why = why_no_checkpoint(files_, folder_); !why.empty()) throw ConfigError(why);
  auto pickled = read_file(files_, folder_ / ".metadata");
  if (files_.exists(folder_ / "meshard.json")) read_extra(pickled);
  metadata_ = decode_metadata(pickled, (folder_ / ".metadata").string());
  for (auto& [key, entry] : metadata_.tensors) {
    std::vector<Box> boxes;
    for (auto& chunk : entry.chunks) boxes.push_back(chunk.box);
    auto problem = tiling_problem(entry.shape, boxes);
    if (!problem.empty())
      throw IoError(fmt::format("{}: {} is not whole: {}", folder_.string(), on_one_line(key), problem));
  }
}

CheckpointReader::~CheckpointReader() = default;

void CheckpointReader::read_extra(std::span<const std::byte> pickled) {
  auto path = folder_ / "meshard.json";
  {
    auto bytes = read_file(files_, path);
    std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    extra_ = read_json<Json>(text, path.string() + " is damaged");
  }
  bool sound = extra_.is_object() && extra_.contains("format") && extra_["format"].is_number_integer() &&
               extra_.contains("items") && extra_["items"].is_object();
  if (!sound) throw IoError(fmt::format("{} is damaged: it is not the JSON that a checkpoint has", path.string()));
  auto sum = extra_.value("crc32c", Json());
  extra_.erase("crc32c");
  auto unsummed = json_text(extra_);
  if (sum != crc32c(std::as_bytes(std::span(unsummed)))) {
    throw IoError(fmt::format("{} is damaged: its checksum is not the one in it", path.string()));
  }
  if (extra_["format"] < 1 || extra_["format"] > kNewestFormat) {
    throw IoError(fmt::format("{} is of format {}, this version reads 1 to {}: use the version that wrote it",
                              path.string(), json_text(extra_["format"]), kNewestFormat));
  }
  if (extra_.value("metadata_crc32c", Json()) != crc32c(pickled)) {
    throw IoError(
        fmt::format("{} is damaged: its checksum is not the one in meshard.json", (folder_ / ".metadata").string()));
  }
  try {
    for (auto& [name, rows] : extra_["items"].items()) {
      if (name.size() > kLongestFileName) throw IoError(fmt::format("{} is damaged: a file's name", path.string()));
      for (auto& row : rows) sums_[{name, row.at(0)}] = {row.at(1), row.at(2)};
    }
  } catch (const Json::exception& error) {
    throw IoError(fmt::format("{} is damaged: its list of items: {}", path.string(), error.what()));
  }
  extra_.erase("items");
  check_facts(extra_, path.string());
}

const ReadableFile& CheckpointReader::file(const std::string& name) const {
  auto& file = open_[name];
  if (!file) file = files_.open(folder_ / name);
  return *file;
}

Mismatch CheckpointReader::compare(const StateDict& wanted, const std::string& prefix) const {
  Mismatch mismatch;
  std::map<std::string, const StateTensor*> tensors;
  for (auto& tensor : wanted.tensors) tensors[tensor.key] = &tensor;
  std::map<std::string, bool> values;
  for (auto& value : wanted.values) values[value.key] = true;
  for (auto& [key, tensor] : tensors) {
    auto found = metadata_.tensors.find(key);
    if (found == metadata_.tensors.end()) {
      mismatch.missing.push_back(key);
    } else if (found->second.shape != tensor->shape) {
      mismatch.shapes.push_back(fmt::format("{}: {} in the checkpoint, {} wanted", key, shape_text(found->second.shape),
                                            shape_text(tensor->shape)));
    } else if (!converts(found->second.dtype, tensor->dtype)) {
      mismatch.dtypes.push_back(fmt::format("{}: {} in the checkpoint, {} wanted", key,
                                            c10::toString(found->second.dtype), c10::toString(tensor->dtype)));
    }
  }
  for (auto& [key, _] : values) {
    if (!metadata_.values.contains(key)) mismatch.missing.push_back(key);
  }
  for (auto& [key, _] : metadata_.tensors) {
    if (key.starts_with(prefix) && !tensors.contains(key)) mismatch.unexpected.push_back(key);
  }
  for (auto& [key, _] : metadata_.values) {
    if (key.starts_with(prefix) && !values.contains(key)) mismatch.unexpected.push_back(key);
  }
  std::ranges::sort(mismatch.missing);
  std::ranges::sort(mismatch.unexpected);
  return mismatch;
}

void CheckpointReader::read(const StateTensor& into) const {
  auto& entry = metadata_.tensors.at(into.key);
  for (auto& piece : into.pieces) {
    auto host =
        piece.values.is_cpu() ? piece.values : at::empty(piece.values.sizes(), piece.values.options().device(at::kCPU));
    for (auto& chunk : entry.chunks) {
      auto shared = overlap(piece.box, chunk.box);
      if (shared.numel() == 0) continue;
      auto what = fmt::format("{} of {}", into.key, (folder_ / chunk.place.file).string());
      auto& data = file(chunk.place.file);
      auto item = read_tensor_item(data, chunk.place, what);
      require_chunk(item, entry, chunk.box, what);
      read_box(data, item, shifted(shared, chunk.box.offsets), part_of(host, shifted(shared, piece.box.offsets)), what);
    }
    if (!host.is_same(piece.values)) piece.values.copy_(host);
  }
}

void CheckpointReader::read(const StateDict& into) const {
  for (auto& tensor : into.tensors) {
    if (metadata_.tensors.contains(tensor.key)) read(tensor);
  }
}

pickle::Value CheckpointReader::read_value(const std::string& key) const {
  auto found = metadata_.values.find(key);
  if (found == metadata_.values.end()) throw IoError(fmt::format("{} has no {}", folder_.string(), key));
  auto& place = found->second;
  return read_value_item(file(place.file), place, fmt::format("{} of {}", key, (folder_ / place.file).string()));
}

}  // namespace meshard
