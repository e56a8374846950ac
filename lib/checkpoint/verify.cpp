#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/load.h"
#include "dcp/crc32c.h"
#include "dcp/torch_archive.h"

namespace meshard {

namespace {

constexpr std::int64_t kVerifyBlock = 1 << 20;
constexpr std::size_t kShownProblems = 20;

struct ListedItem {
  const std::string* key;
  const ItemPlace* place;
  const TensorEntry* tensor;  // null: a value
  const Box* box;             // of the tensor
};

std::vector<ListedItem> items_of(const CheckpointMetadata& metadata) {
  std::vector<ListedItem> items;
  for (auto& [key, entry] : metadata.tensors) {
    for (auto& chunk : entry.chunks) items.push_back({&key, &chunk.place, &entry, &chunk.box});
  }
  for (auto& [key, place] : metadata.values) items.push_back({&key, &place, nullptr, nullptr});
  return items;
}

std::uint32_t sum_of(const ReadableFile& file, const ItemPlace& place) {
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(place.length, kVerifyBlock)));
  std::uint32_t sum = 0;
  for (std::int64_t done = 0; done < place.length;) {
    auto count = std::min<std::int64_t>(place.length - done, std::ssize(block));
    auto part = std::span(block).first(static_cast<std::size_t>(count));
    file.read(place.offset + done, part);
    sum = crc32c(part, sum);
    done += count;
  }
  return sum;
}

/// What a load would take from the item: keys of a model and its optimizer. All else is only passed on.
bool is_loaded(const std::string& key) {
  return key.starts_with("model.") || key.starts_with("optimizer.");
}

bool is_count(const std::string& key) {
  return key.starts_with("optimizer.state.") && key.ends_with(".step");
}

/// A count of optimizer steps is a number that counting reaches. None: it is no number at all.
std::optional<float> count_of(const ReadableFile& file, const TensorItem& item, const std::string& what) {
  if (!item.sizes.empty() || !converts(item.dtype, at::kFloat)) return {};
  auto value = at::empty({}, at::kFloat);
  read_box(file, item, whole({}), value, what);
  auto count = value.item<float>();
  if (!(count >= 0.0f && std::isfinite(count) && count == std::floor(count))) {
    throw IoError(fmt::format("{}: it is {}: no count of steps", what, count));
  }
  return count;
}

std::string what_of(const ListedItem& item, const std::filesystem::path& folder) {
  return fmt::format("{} of {}", on_one_line(*item.key), (folder / on_one_line(item.place->file)).string());
}

bool is_in(const ItemPlace& place, const ReadableFile& file) {
  return place.offset <= file.size() - place.length;
}

/// Two items of one file never share a byte: each has an archive of its own.
std::vector<std::string> shared_places(std::vector<ListedItem> items, const std::filesystem::path& folder) {
  std::vector<std::string> problems;
  std::ranges::sort(items, [](auto& a, auto& b) {
    return std::tie(a.place->file, a.place->offset, *a.key) < std::tie(b.place->file, b.place->offset, *b.key);
  });
  for (std::size_t i = 1; i < items.size(); ++i) {
    auto &before = items[i - 1], &item = items[i];
    bool apart = before.place->file != item.place->file ||
                 before.place->offset + before.place->length <= item.place->offset;
    if (apart) continue;
    problems.push_back(fmt::format("{}: it begins at byte {}, before {} ends", what_of(item, folder),
                                   item.place->offset, on_one_line(*before.key)));
  }
  return problems;
}

}  // namespace

/// One rank's share of a verification.
class Verifier {
 public:
  explicit Verifier(const CheckpointReader& reader) : reader_(reader), ours_(!reader.extra().is_null()) {}

  void check(const ListedItem& item) {
    auto& name = item.place->file;
    if (unreadable_.contains(name)) return;
    auto what = what_of(item, reader_.folder());
    const ReadableFile* file = nullptr;
    try {
      file = &reader_.file(name);
    } catch (const IoError& error) {  // told once, not for each of its items
      unreadable_.insert(name);
      found.problems.push_back(error.what());
      return;
    }
    try {
      check(item, *file, what);
    } catch (const std::exception& error) {
      std::string text = error.what();
      found.problems.push_back(text.find(*item.key) == std::string::npos ? fmt::format("{}: {}", what, text) : text);
    }
  }

  Verification found;

 private:
  void check(const ListedItem& item, const ReadableFile& file, const std::string& what) {
    auto& place = *item.place;
    if (!is_in(place, file)) throw IoError(what + ": it ends beyond its file");
    CheckedItem read{place.length, true};
    if (ours_) {
      check_sum(file, place, what);
    } else {
      read = check_item(file, place, what);
    }
    if (item.tensor) check_tensor(item, file, what);
    auto& [items, bytes] = read.has_checksums ? found.summed : found.unsummed;
    items += 1;
    bytes += read.bytes;
  }

  void check_sum(const ReadableFile& file, const ItemPlace& place, const std::string& what) const {
    auto listed = reader_.sums_.find({place.file, place.offset});
    if (listed == reader_.sums_.end() || listed->second.length != place.length) {
      throw IoError(what + ": meshard.json does not list it");
    }
    auto sum = sum_of(file, place), expected = listed->second.crc;
    if (sum == expected) return;
    throw IoError(fmt::format("{}: checksum {:08x}, {:08x} when it was written: its bytes have changed", what, sum,
                              expected));
  }

  void check_tensor(const ListedItem& listed, const ReadableFile& file, const std::string& what) {
    TensorItem item;
    try {
      item = read_tensor_item(file, *listed.place, what);
    } catch (const IoError&) {
      if (is_loaded(*listed.key)) throw;
      ++found.opaque;  // a class of Python's that only its program knows
      return;
    }
    require_chunk(item, *listed.tensor, *listed.box, what);
    if (!is_count(*listed.key)) return;
    if (auto count = count_of(file, item, what)) compare_count(*count, what);
  }

  /// Meshard keeps one count for all parameters. Whether it is beyond the signed step is told once, by who loads.
  void compare_count(float count, const std::string& what) {
    if (!ours_ || !reader_.extra().contains("step")) return;
    auto step = reader_.extra()["step"].get<std::int64_t>();
    if (first_count_ && count != first_count_->first) {
      throw IoError(fmt::format("{}: it is {}, but {} is {}; expected one count for all parameters", what, count,
                                first_count_->second, first_count_->first));
    }
    if (!first_count_) first_count_ = {count, what};
    found.skipped = step - static_cast<std::int64_t>(count);
  }

  const CheckpointReader& reader_;
  bool ours_;
  std::set<std::string> unreadable_;
  std::optional<std::pair<float, std::string>> first_count_;  ///< of this share, and what it counts
};

std::string Verification::problems_text() const {
  auto shown = std::span(problems).first(std::min(kShownProblems, problems.size()));
  auto text = fmt::format("  {}", fmt::join(shown, "\n  "));
  if (shown.size() < problems.size()) text += fmt::format("\n  and {} more", problems.size() - shown.size());
  return text;
}

std::string Verification::checked_text() const {
  std::string text;
  if (summed.items > 0 || unsummed.items == 0) {
    text = fmt::format("checked: {} items of {} bytes against {}; ", summed.items, summed.bytes,
                       by_meshard ? "the CRC-32C in meshard.json, which covers itself and .metadata"
                                  : "the CRC-32 of their archives (PyTorch wrote no other checksum)");
  } else {
    text = "checked: ";
  }
  text += "shapes and dtypes; every tensor is tiled exactly once";
  if (unsummed.items > 0) {
    text += fmt::format(
        "\nNOT checked: the data of {} items of {} bytes: their archives have no CRC-32 (PyTorch was told to write "
        "none)",
        unsummed.items, unsummed.bytes);
  }
  if (skipped > 0) {
    text += fmt::format(
        "\nNOT done by its optimizer: {} of the steps that meshard.json counts; they were skipped "
        "(health.on_nonfinite), or it counts wrongly",
        skipped);
  }
  if (opaque > 0) {
    text += fmt::format("\nNOT checked: the shapes of {} items outside model and optimizer: they are no plain tensors",
                        opaque);
  }
  return text;
}

Verification CheckpointReader::verify(int part, int parts) const {
  auto items = items_of(metadata_);
  Verifier verifier(*this);
  verifier.found.by_meshard = !extra_.is_null();
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (static_cast<int>(i % static_cast<std::size_t>(parts)) == part) verifier.check(items[i]);
  }
  if (part == 0) std::ranges::move(shared_places(items, folder_), std::back_inserter(verifier.found.problems));
  return std::move(verifier.found);
}

void CheckpointReader::require_extents() const {
  auto items = items_of(metadata_);
  for (auto& item : items) {
    if (!is_in(*item.place, file(item.place->file))) {
      throw IoError(what_of(item, folder_) + ": it ends beyond its file");
    }
    if (!item.tensor || !is_loaded(*item.key)) continue;
    auto bytes = item.box->numel() * static_cast<std::int64_t>(c10::elementSize(item.tensor->dtype));
    if (bytes > item.place->length) {
      throw IoError(fmt::format("{}: its chunk {} has {} bytes, the item {}", what_of(item, folder_),
                                to_string(*item.box), bytes, item.place->length));
    }
  }
  auto problems = shared_places(std::move(items), folder_);
  if (!problems.empty()) throw IoError(problems.front());
}

void CheckpointReader::require_sound(const char* purpose) const {
  auto found = verify();
  if (found.sound()) return;
  throw IoError(fmt::format("{} cannot be {}:\n{}", folder_.string(), purpose, found.problems_text()));
}

}  // namespace meshard
