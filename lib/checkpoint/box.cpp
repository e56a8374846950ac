#include "checkpoint/box.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace meshard {
namespace {

/// A box, counted `weight` times.
struct WeightedBox {
  const Box* box;
  std::int64_t weight;
};

/// Order of what two boxes are from dimension `from` on.
std::strong_ordering compare_rest(const Box& a, const Box& b, std::size_t from) {
  for (auto dim = from; dim < a.sizes.size(); ++dim) {
    if (auto order = a.offsets[dim] <=> b.offsets[dim]; order != 0) return order;
    if (auto order = a.sizes[dim] <=> b.sizes[dim]; order != 0) return order;
  }
  return std::strong_ordering::equal;
}

/// Boxes alike from dimension `from` on become one; those that cancel out go.
void cancel(std::vector<WeightedBox>& boxes, std::size_t from) {
  std::ranges::sort(boxes, [&](auto& a, auto& b) { return compare_rest(*a.box, *b.box, from) < 0; });
  std::size_t kept = 0;
  for (auto& box : boxes) {
    if (kept > 0 && compare_rest(*boxes[kept - 1].box, *box.box, from) == 0) {
      boxes[kept - 1].weight += box.weight;
    } else {
      if (kept > 0 && boxes[kept - 1].weight == 0) --kept;
      boxes[kept++] = box;
    }
  }
  if (kept > 0 && boxes[kept - 1].weight == 0) --kept;
  boxes.resize(kept);
}

/// How often each element is covered is a function of its place, a weighted sum of boxes. It is 0 everywhere exactly if
/// all its differences, along each dimension in turn, are. The first place, in lexical order, with a difference is the
/// first that is covered other than 0 times, and that often. Returns 0, or this count, with the place in `at`.
std::int64_t first_nonzero(std::vector<WeightedBox> boxes, std::size_t dim, Shape& at) {
  cancel(boxes, dim);
  if (boxes.empty()) return 0;
  if (dim == at.size()) return boxes[0].weight;
  std::vector<std::pair<std::int64_t, WeightedBox>> changes;
  changes.reserve(2 * boxes.size());
  for (auto& [box, weight] : boxes) {
    changes.push_back({box->offsets[dim], {box, weight}});
    changes.push_back({box->offsets[dim] + box->sizes[dim], {box, -weight}});
  }
  std::ranges::sort(changes, {}, [](auto& change) { return change.first; });
  for (auto change = changes.begin(); change != changes.end();) {
    at[dim] = change->first;
    std::vector<WeightedBox> here;
    for (; change != changes.end() && change->first == at[dim]; ++change) here.push_back(change->second);
    if (auto count = first_nonzero(std::move(here), dim + 1, at)) return count;
  }
  return 0;
}

bool contains(const Box& box, const Shape& at) {
  for (std::size_t dim = 0; dim < at.size(); ++dim) {
    if (at[dim] < box.offsets[dim] || at[dim] >= box.offsets[dim] + box.sizes[dim]) return false;
  }
  return true;
}

bool inside(const Box& box, const Shape& shape) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) return false;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.offsets[dim] < 0 || box.sizes[dim] < 0 || box.offsets[dim] > shape[dim] - box.sizes[dim]) return false;
  }
  return true;
}

}  // namespace

std::int64_t Box::numel() const {
  std::int64_t product = 1;
  for (auto size : sizes) product *= size;
  return product;
}

std::string to_string(const Box& box) {
  std::vector<std::string> ranges;
  for (std::size_t dim = 0; dim < std::min(box.offsets.size(), box.sizes.size()); ++dim) {
    // Wraps where a damaged box goes beyond 64 bits; the message is about that box.
    auto end = static_cast<std::uint64_t>(box.offsets[dim]) + static_cast<std::uint64_t>(box.sizes[dim]);
    ranges.push_back(fmt::format("{}:{}", box.offsets[dim], static_cast<std::int64_t>(end)));
  }
  return fmt::format("[{}]", fmt::join(ranges, ", "));
}

Box whole(const Shape& shape) {
  return {Shape(shape.size(), 0), shape};
}

Box overlap(const Box& a, const Box& b) {
  Box both = a;
  for (std::size_t dim = 0; dim < a.sizes.size(); ++dim) {
    both.offsets[dim] = std::max(a.offsets[dim], b.offsets[dim]);
    auto end = std::min(a.offsets[dim] + a.sizes[dim], b.offsets[dim] + b.sizes[dim]);
    both.sizes[dim] = std::max<std::int64_t>(0, end - both.offsets[dim]);
  }
  return both;
}

Box shifted(Box box, const Shape& origin) {
  for (std::size_t d = 0; d < origin.size(); ++d) box.offsets[d] -= origin[d];
  return box;
}

std::vector<Box> boxes_of_rows(std::int64_t begin, std::int64_t count, std::int64_t rows_per_item,
                               std::int64_t columns) {
  if (begin < 0 || count < 0 || rows_per_item < 1 || columns < 0) {
    throw ArgumentError(fmt::format("boxes of rows [{}, {} + {}) with {} rows an item and {} columns", begin, begin,
                                    count, rows_per_item, columns));
  }
  std::vector<Box> boxes;
  auto add = [&](std::int64_t items, std::int64_t rows) {
    boxes.push_back({{begin / rows_per_item, begin % rows_per_item, 0}, {items, rows, columns}});
    begin += items * rows;
    count -= items * rows;
  };
  if (count > 0 && begin % rows_per_item != 0) add(1, std::min(count, rows_per_item - begin % rows_per_item));
  if (count >= rows_per_item) add(count / rows_per_item, rows_per_item);
  if (count > 0) add(1, count);
  return boxes;
}

std::string tiling_problem(const Shape& shape, std::span<const Box> boxes) {
  auto all = whole(shape);
  std::vector<WeightedBox> cover;
  cover.reserve(boxes.size() + 1);
  for (auto& box : boxes) {
    if (!inside(box, shape)) {
      return fmt::format("box {} is not inside the tensor's shape [{}]", to_string(box), fmt::join(shape, ", "));
    }
    if (std::ranges::count(box.sizes, 0) == 0) cover.push_back({&box, 1});
  }
  if (std::ranges::count(shape, 0) == 0) cover.push_back({&all, -1});
  Shape at(shape.size(), 0);
  auto count = first_nonzero(std::move(cover), 0, at);
  if (count == 0) return "";
  auto place = fmt::format("[{}]", fmt::join(at, ", "));
  if (count < 0) return fmt::format("no box covers element {}", place);
  std::vector<std::string> there;
  for (auto& box : boxes) {
    if (there.size() < 2 && contains(box, at)) there.push_back(to_string(box));
  }
  return fmt::format("boxes {} overlap at element {}", fmt::join(there, " and "), place);
}

}  // namespace meshard
