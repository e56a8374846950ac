#include "sharding/flat_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace meshard {

namespace {

std::int64_t align_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

void check_shape(const Shape& shape, int index) {
  if (shape.empty()) throw ShapeError(fmt::format("tensor {} of a group is 0-d; give it one dimension", index));
  if (std::find(shape.begin() + 1, shape.end(), 0) == shape.end()) return;
  throw ShapeError(fmt::format("tensor {} of a group has shape {}: only dimension 0 may be zero", index, shape));
}

}  // namespace

GlobalLayout GlobalLayout::build(std::span<const Shape> shapes, int num_shards) {
  if (num_shards < 1) throw ArgumentError(fmt::format("a layout needs at least 1 shard, not {}", num_shards));
  GlobalLayout layout;
  layout.num_shards_ = num_shards;
  std::int64_t end = 0;
  for (auto& shape : shapes) {
    check_shape(shape, layout.count());
    Placed tensor{shape, numel_of(shape), align_up(end, kAlignment)};
    end = tensor.offset + tensor.numel;
    layout.tensors_.push_back(std::move(tensor));
  }
  layout.size_ = align_up(end, kAlignment * num_shards);
  return layout;
}

std::int64_t GlobalLayout::padding() const {
  return std::accumulate(tensors_.begin(), tensors_.end(), size_,
                         [](std::int64_t rest, const Placed& tensor) { return rest - tensor.numel; });
}

IndexRange GlobalLayout::shard(int shard) const {
  auto step = size_ / num_shards_;
  return {shard * step, (shard + 1) * step};
}

IndexRange GlobalLayout::elements_in(int index, const IndexRange& range) const {
  auto& tensor = tensors_[index];
  auto begin = std::clamp(range.begin - tensor.offset, std::int64_t{0}, tensor.numel);
  auto end = std::clamp(range.end - tensor.offset, std::int64_t{0}, tensor.numel);
  return begin < end ? IndexRange{begin, end} : IndexRange{};
}

std::vector<IndexRange> GlobalLayout::gaps_in(const IndexRange& range) const {
  std::vector<IndexRange> gaps;
  auto gap = [&](std::int64_t begin, std::int64_t end) {
    begin = std::max(begin, range.begin);
    end = std::min(end, range.end);
    if (begin < end) gaps.push_back({begin, end});
  };
  std::int64_t cursor = 0;
  for (auto& tensor : tensors_) {
    gap(cursor, tensor.offset);
    cursor = tensor.offset + tensor.numel;
  }
  gap(cursor, size_);
  return gaps;
}

}  // namespace meshard
