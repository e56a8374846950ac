#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "checkpoint/crc32c.h"
#include "checkpoint/load.h"
#include "checkpoint/torch_archive.h"

namespace meshard {

namespace {

constexpr std::int64_t kVerifyBlock = 1 << 20;

struct ListedItem {
  const std::string* key;
  const ItemPlace* place;
  bool is_tensor;
};

std::string check_sum(const ReadableFile& file, const ItemPlace& place, std::uint32_t expected) {
  std::vector<std::byte> block(std::min(place.length, kVerifyBlock));
  std::uint32_t sum = 0;
  for (std::int64_t done = 0; done < place.length;) {
    auto count = std::min<std::int64_t>(place.length - done, std::ssize(block));
    std::span part(block.data(), static_cast<std::size_t>(count));
    file.read(place.offset + done, part);
    sum = crc32c(part, sum);
    done += count;
  }
  return sum == expected
             ? ""
             : fmt::format("checksum {:08x}, {:08x} when it was written: its bytes have changed", sum, expected);
}

}  // namespace

std::vector<std::string> CheckpointReader::verify(int part, int parts) const {
  std::vector<ListedItem> items;
  for (auto& [key, entry] : metadata_.tensors) {
    for (auto& chunk : entry.chunks) items.push_back({&key, &chunk.place, true});
  }
  for (auto& [key, place] : metadata_.values) items.push_back({&key, &place, false});

  std::vector<std::string> problems;
  std::set<std::string> unreadable;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (static_cast<int>(i % static_cast<std::size_t>(parts)) != part) continue;
    auto& [key, place, is_tensor] = items[i];
    auto what = fmt::format("{} of {}", *key, (folder_ / place->file).string());
    if (unreadable.contains(place->file)) continue;
    try {
      file(place->file);
    } catch (const IoError& error) {  // told once, not for each of its items
      unreadable.insert(place->file);
      problems.push_back(error.what());
      continue;
    }
    try {
      auto& data = file(place->file);
      auto listed = sums_.find({place->file, place->offset});
      std::string problem;
      if (!extra_.is_null() && (listed == sums_.end() || listed->second.length != place->length)) {
        problem = "meshard.json does not list it";
      } else if (!extra_.is_null()) {
        problem = check_sum(data, *place, listed->second.crc);
      }
      if (!problem.empty()) {
        problems.push_back(fmt::format("{}: {}", what, problem));
        continue;
      }
      // Values, and what is not a model's or an optimizer's, may be anything that Python can pickle.
      bool ours = key->starts_with("model.") || key->starts_with("optimizer.");
      if (is_tensor && ours) read_tensor_item(data, *place, what);
      if (place->offset + place->length > data.size()) problems.push_back(what + ": it ends beyond its file");
    } catch (const std::exception& error) {
      std::string text = error.what();
      problems.push_back(text.find(*key) == std::string::npos ? fmt::format("{}: {}", what, text) : text);
    }
  }
  return problems;
}

}  // namespace meshard
