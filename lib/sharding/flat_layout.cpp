#include "sharding/flat_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <list>
#include <numeric>

#include "base/error.h"

namespace meshard {

namespace {

std::int64_t align_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::int64_t row_of(const Shape& shape, int index) {
  if (shape.empty()) throw ShapeError(fmt::format("tensor {} of a group is 0-d; give it one dimension", index));
  std::int64_t row = 1;
  for (std::size_t d = 1; d < shape.size(); ++d) row *= shape[d];
  if (row == 0) {
    throw ShapeError(fmt::format("tensor {} of a group has shape {}: only dimension 0 may be zero", index, shape));
  }
  return row;
}

// Places tensors chunk by chunk. The cursor always rests on a chunk boundary between two regular tensors.
class Placer {
 public:
  struct Item {
    int index;
    std::int64_t row, numel;
  };

  Placer(std::int64_t chunk, std::vector<std::int64_t>& offsets) : chunk_(chunk), offsets_(offsets) {}

  void add(const Item& item) { (item.numel < chunk_ ? fragments_ : regulars_).push_back(item); }

  std::int64_t place() {
    // Large fragments first: one placed late would open a new chunk of its own.
    fragments_.sort([](const Item& a, const Item& b) { return a.numel > b.numel; });
    while (!regulars_.empty()) {
      auto item = regulars_.front();
      regulars_.pop_front();
      offsets_[item.index] = cursor_;
      cursor_ += item.numel;
      if (cursor_ % chunk_ != 0) fill_gap();
    }
    fill_with_fragments(INT64_MAX);
    return cursor_;
  }

 private:
  void fill_gap() {
    auto used = cursor_ % chunk_;
    auto gap_end = cursor_ - used + chunk_;
    auto next = gap_end;
    auto conjugate = std::ranges::find_if(
        regulars_, [&](const Item& item) { return item.numel % chunk_ != 0 && used + item.numel % chunk_ <= chunk_; });
    if (conjugate != regulars_.end()) {
      gap_end -= conjugate->numel % chunk_;
      offsets_[conjugate->index] = gap_end;
      next = gap_end + conjugate->numel;
      regulars_.erase(conjugate);
    }
    fill_with_fragments(gap_end);
    cursor_ = next;
  }

  void fill_with_fragments(std::int64_t end) {
    for (auto item = fragments_.begin(); item != fragments_.end();) {
      auto offset = align_up(cursor_, item->row);
      if (offset > end - item->numel) {
        ++item;
        continue;
      }
      offsets_[item->index] = offset;
      cursor_ = offset + item->numel;
      item = fragments_.erase(item);
    }
  }

  std::int64_t chunk_;
  std::vector<std::int64_t>& offsets_;
  std::list<Item> regulars_, fragments_;
  std::int64_t cursor_ = 0;
};

}  // namespace

GlobalLayout GlobalLayout::build(std::span<const Shape> shapes, int num_shards) {
  if (num_shards < 1) throw ArgumentError(fmt::format("a layout needs at least 1 shard, not {}", num_shards));
  GlobalLayout layout;
  layout.num_shards_ = num_shards;
  for (int i = 0; i < static_cast<int>(shapes.size()); ++i) {
    auto row = row_of(shapes[i], i);
    layout.tensors_.push_back({shapes[i], row, row * shapes[i][0], 0});
    layout.chunk_ = std::lcm(layout.chunk_, row);
  }
  std::vector<std::int64_t> offsets(shapes.size());
  Placer placer(layout.chunk_, offsets);
  for (int i = 0; i < layout.count(); ++i) placer.add({i, layout.row_size(i), layout.numel(i)});
  layout.size_ = align_up(placer.place(), layout.chunk_ * num_shards);
  for (int i = 0; i < layout.count(); ++i) layout.tensors_[i].offset = offsets[i];
  return layout;
}

std::int64_t GlobalLayout::padding() const {
  return std::accumulate(tensors_.begin(), tensors_.end(), size_,
                         [](std::int64_t rest, const Placed& tensor) { return rest - tensor.numel; });
}

FlatRange GlobalLayout::shard(int shard) const {
  auto step = size_ / num_shards_;
  return {shard * step, (shard + 1) * step};
}

RowRange GlobalLayout::rows_in(int index, const FlatRange& range) const {
  auto& tensor = tensors_[index];
  auto begin = std::clamp(range.begin - tensor.offset, std::int64_t{0}, tensor.numel);
  auto end = std::clamp(range.end - tensor.offset, std::int64_t{0}, tensor.numel);
  return begin < end ? RowRange{begin / tensor.row, end / tensor.row} : RowRange{};
}

std::vector<FlatRange> GlobalLayout::gaps_in(const FlatRange& range) const {
  std::vector<FlatRange> taken;
  for (auto& tensor : tensors_) {
    if (tensor.numel > 0) taken.push_back({tensor.offset, tensor.offset + tensor.numel});
  }
  std::ranges::sort(taken, {}, &FlatRange::begin);
  taken.push_back({range.end, range.end});

  std::vector<FlatRange> gaps;
  auto cursor = range.begin;
  for (auto& tensor : taken) {
    auto end = std::min(tensor.begin, range.end);
    if (end > cursor) gaps.push_back({cursor, end});
    cursor = std::max(cursor, tensor.end);
  }
  return gaps;
}

}  // namespace meshard
