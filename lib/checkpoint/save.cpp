#include "checkpoint/save.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <sstream>

#include "base/error.h"
#include "base/hash.h"
#include "base/json_text.h"
#include "comm/world/together.h"
#include "dcp/crc32c.h"
#include "dcp/tiling.h"
#include "dcp/torch_archive.h"

namespace meshard {

// What a rank tells of one item that it wrote.
struct WrittenItem {
  bool is_tensor = true;
  std::size_t index = 0;  // in the state dict
  Box box;
  std::int64_t offset = 0, length = 0;
  std::uint32_t crc = 0;
};

namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

std::string file_of(int rank) {
  return fmt::format("__{}_0.distcp", rank);
}

std::string encode(const std::vector<WrittenItem>& items) {
  std::string text;
  for (auto& item : items) {
    text += fmt::format("{} {} {} {} {} {}", item.is_tensor ? 't' : 'v', item.index, item.offset, item.length, item.crc,
                        item.box.sizes.size());
    for (auto* numbers : {&item.box.offsets, &item.box.sizes}) text += fmt::format(" {}", fmt::join(*numbers, " "));
    text += "\n";
  }
  return text;
}

std::vector<WrittenItem> decode(const std::string& text) {
  std::vector<WrittenItem> items;
  std::istringstream in(text);
  char kind = 't';
  WrittenItem item;
  for (std::size_t dims = 0; in >> kind >> item.index >> item.offset >> item.length >> item.crc >> dims;) {
    item.is_tensor = kind == 't';
    item.box = {Shape(dims), Shape(dims)};
    for (auto* numbers : {&item.box.offsets, &item.box.sizes}) {
      for (auto& number : *numbers) in >> number;
    }
    items.push_back(item);
  }
  return items;
}

std::filesystem::path partial_folder(const std::filesystem::path& folder) {
  auto partial = folder;
  return partial += ".partial";
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

struct SaveJob::Parts {
  World& world;
  FileSystem& files;
  std::filesystem::path folder;
  StateDict state;
  Json extra;
  std::vector<WrittenPiece> pieces;
  std::vector<WrittenItem> items;
  std::string problem;
  std::int64_t bytes = 0;

  void write_all();
  void write_commit_record(const std::vector<std::string>& told);
  CheckpointMetadata index(const std::vector<std::vector<WrittenItem>>& by_rank) const;
  void prove_tiling(const CheckpointMetadata& metadata) const;
};

SaveJob::SaveJob(World& world, FileSystem& files, std::filesystem::path folder, StateDict state, Json extra, bool stage)
    : parts_(new Parts{world, files, std::move(folder), std::move(state), std::move(extra), {}, {}, {}, 0}) {
  auto& parts = *parts_;
  together(world, [&] {
    if (world.rank() != 0) return;
    files.remove_all(partial_folder(parts.folder));
    files.make_folder(partial_folder(parts.folder));
  });
  parts.pieces = pieces_to_write(parts.state, world.rank());
  if (!stage) return;
  for (auto& written : parts.pieces) {
    auto& values = parts.state.tensors[written.tensor].pieces[written.piece].values;
    values = values.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  }
}

SaveJob::~SaveJob() = default;

const std::filesystem::path& SaveJob::folder() const {
  return parts_->folder;
}

std::int64_t SaveJob::bytes_written() const {
  return parts_->bytes;
}

void SaveJob::write() noexcept {
  try {
    parts_->write_all();
  } catch (const std::exception& error) {
    parts_->problem = error.what();
  }
}

void SaveJob::Parts::write_all() {
  bool writes_values = world.rank() == 0 && !state.values.empty();
  if (pieces.empty() && !writes_values) return;
  auto file = files.create(partial_folder(folder) / file_of(world.rank()));
  std::int64_t end = 0;
  auto add = [&](WrittenItem item, const auto& write_item) {
    item.offset = end;
    item.length = write_item([&](std::span<const std::byte> bytes) {
      item.crc = crc32c(bytes, item.crc);
      file->append(bytes);
    });
    end += item.length;
    items.push_back(std::move(item));
  };
  for (auto& written : pieces) {
    auto& piece = state.tensors[written.tensor].pieces[written.piece];
    add({true, written.tensor, piece.box, 0, 0, 0}, [&](const ByteSink& sink) {
      auto length = write_tensor_item(piece.values.to(at::kCPU).contiguous(), sink);
      piece.values = at::Tensor();  // a staged copy is not needed any more
      return length;
    });
  }
  for (std::size_t i = 0; writes_values && i < state.values.size(); ++i) {
    add({false, i, {}, 0, 0, 0}, [&](const ByteSink& sink) { return write_value_item(state.values[i].value, sink); });
  }
  file->sync();
  file->close();
  bytes = end;
}

void SaveJob::commit() {
  auto& parts = *parts_;
  try {
    parts.world.raise_together(parts.problem);
    auto told = parts.world.gather_texts(encode(parts.items));
    together(parts.world, [&] {
      if (parts.world.rank() == 0) parts.write_commit_record(told);
    });
  } catch (...) {
    if (parts.world.rank() == 0) {
      try {
        parts.files.remove_all(partial_folder(parts.folder));
      } catch (const IoError&) {  // the next save tries again; the first failure is the one to tell
      }
    }
    throw;
  }
}

void SaveJob::Parts::write_commit_record(const std::vector<std::string>& told) {
  std::vector<std::vector<WrittenItem>> by_rank;
  auto listed = Json::object();
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    by_rank.push_back(decode(told[rank]));
    auto rows = Json::array();
    for (auto& item : by_rank.back()) rows.push_back({item.offset, item.length, item.crc});
    if (!rows.empty()) listed[file_of(static_cast<int>(rank))] = std::move(rows);
  }
  auto metadata = index(by_rank);
  prove_tiling(metadata);
  auto now = std::chrono::system_clock::now().time_since_epoch().count();
  auto save_id = fmt::format("{:016x}", hash_text(fmt::format("{} {}", folder.string(), now)));
  auto pickled = encode_metadata(metadata, folder.string(), save_id);

  Json ours{{"format", kFormat}, {"metadata_crc32c", crc32c(bytes_of(pickled))}, {"items", std::move(listed)}};
  if (extra.is_object()) ours.update(extra);
  ours["crc32c"] = crc32c(bytes_of(json_text(ours)));
  auto partial = partial_folder(folder);
  write_file(files, partial / "meshard.json", bytes_of(json_text(ours)));
  write_file(files, partial / ".metadata", bytes_of(pickled));
  files.sync_folder(partial);
  files.remove_all(folder);  // a damaged one of this step, which the run did not begin from
  files.rename(partial, folder);
  files.sync_folder(folder.parent_path());
}

CheckpointMetadata SaveJob::Parts::index(const std::vector<std::vector<WrittenItem>>& by_rank) const {
  CheckpointMetadata metadata;
  for (auto& tensor : state.tensors) {
    metadata.tensors[tensor.key] = {tensor.dtype, tensor.shape, {}};
    metadata.paths[tensor.key] = tensor.path;
  }
  for (auto& value : state.values) metadata.paths[value.key] = value.path;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (auto& item : by_rank[rank]) {
      ItemPlace place{file_of(static_cast<int>(rank)), item.offset, item.length};
      if (item.is_tensor) {
        metadata.tensors[state.tensors.at(item.index).key].chunks.push_back({item.box, std::move(place)});
      } else {
        metadata.values[state.values.at(item.index).key] = std::move(place);
      }
    }
  }
  return metadata;
}

void SaveJob::Parts::prove_tiling(const CheckpointMetadata& metadata) const {
  for (auto& [key, entry] : metadata.tensors) {
    std::vector<Box> boxes;
    for (auto& chunk : entry.chunks) boxes.push_back(chunk.box);
    auto problem = tiling_problem(entry.shape, boxes);
    if (!problem.empty()) throw LogicError(fmt::format("{} was not saved as a whole: {}", key, problem));
  }
}

// -- Saver ------------------------------------------------------------------------------------------------------------

Saver::~Saver() {
  if (writing_.valid()) writing_.wait();
}

void Saver::save(const std::filesystem::path& folder, StateDict state, Json extra) {
  finish();
  job_ = std::make_unique<SaveJob>(world_, files_, folder, std::move(state), std::move(extra), async_);
  if (async_) {
    writing_ = std::async(std::launch::async, [job = job_.get()] { job->write(); });
  } else {
    job_->write();
    commit();
  }
}

std::optional<std::filesystem::path> Saver::poll() {
  if (!job_) return {};
  bool mine = writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  auto unfinished = at::full({1}, mine ? 0 : 1, at::kLong);
  world_.control().all_reduce(unfinished, ReduceOp::Max, {"save", true}).wait();
  return unfinished.item<std::int64_t>() == 0 ? commit() : std::nullopt;
}

std::optional<std::filesystem::path> Saver::finish() {
  if (!job_) return {};
  return commit();
}

std::optional<std::filesystem::path> Saver::commit() {
  if (writing_.valid()) writing_.get();
  auto job = std::move(job_);
  job->commit();
  return job->folder();
}

}  // namespace meshard
