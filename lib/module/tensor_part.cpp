#include "module/tensor_part.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace meshard {

namespace {

// Cuts a range of a box's elements into boxes, dimension by dimension: the end of one item, whole items, the begin of
// one.
class Cut {
 public:
  explicit Cut(const Box& of) : of_(of), at_(of.offsets), inner_(of.sizes.size(), 1) {
    for (auto d = of_.sizes.size(); d > 1; --d) inner_[d - 2] = inner_[d - 1] * of_.sizes[d - 1];
  }

  void take(std::size_t dim, IndexRange range) {
    if (range.count() == 0) return;
    if (dim == of_.sizes.size()) return add(dim, 0, 1);
    auto inner = inner_[dim];
    auto first = range.begin / inner, last = range.end / inner;
    if (range.begin % inner != 0) {
      auto item_end = std::min((first + 1) * inner, range.end);
      descend(dim, first, {range.begin - first * inner, item_end - first * inner});
      range.begin = item_end;
      ++first;
    }
    if (range.count() == 0) return;
    if (last > first) add(dim, first, last - first);
    descend(dim, last, {0, range.end - last * inner});
  }

  std::vector<Box> boxes;

 private:
  void descend(std::size_t dim, std::int64_t item, const IndexRange& range) {
    at_[dim] = of_.offsets[dim] + item;
    take(dim + 1, range);
    at_[dim] = of_.offsets[dim];
  }

  // `count` whole items of dimension `dim`.
  void add(std::size_t dim, std::int64_t first, std::int64_t count) {
    Box box{at_, of_.sizes};
    std::fill_n(box.sizes.begin(), dim, 1);
    if (dim < box.sizes.size()) {
      box.offsets[dim] += first;
      box.sizes[dim] = count;
    }
    boxes.push_back(std::move(box));
  }

  const Box& of_;
  Shape at_, inner_;
};

}  // namespace

TensorPart::TensorPart(Shape whole_shape) : whole_shape_(std::move(whole_shape)), box_(whole(whole_shape_)) {}

TensorPart::TensorPart(Shape whole_shape, Box box) : whole_shape_(std::move(whole_shape)), box_(std::move(box)) {
  if (!is_inside(box_, whole_shape_)) {
    throw ShapeError(fmt::format("part {} is not inside a tensor of shape [{}]", to_string(box_),
                                 fmt::join(whole_shape_, ", ")));
  }
}

std::vector<Box> TensorPart::boxes(const IndexRange& range) const {
  Cut cut(box_);
  cut.take(0, range);
  return std::move(cut.boxes);
}

void TensorPart::for_each_run(const IndexRange& range, const std::function<void(const Run&)>& visit) const {
  auto dims = box_.sizes.size();
  Shape strides(dims, 1);
  for (auto d = dims; d > 1; --d) strides[d - 2] = strides[d - 1] * whole_shape_[d - 1];
  // The last dimension that is cut, and all after it, make one run.
  auto cut = dims;
  while (cut > 0 && box_.sizes[cut - 1] == whole_shape_[cut - 1]) --cut;
  auto outer = cut > 0 ? cut - 1 : 0;
  std::int64_t length = 1;
  for (auto d = outer; d < dims; ++d) length *= box_.sizes[d];
  for (auto at = range.begin; at < range.end;) {
    auto run = at / length, within = at % length;
    auto place = within;
    if (dims > 0) place += box_.offsets[outer] * strides[outer];
    for (auto d = outer; d > 0; run /= box_.sizes[d - 1], --d) {
      place += (box_.offsets[d - 1] + run % box_.sizes[d - 1]) * strides[d - 1];
    }
    auto count = std::min(length - within, range.end - at);
    visit({at, place, count});
    at += count;
  }
}

}  // namespace meshard
