#include "base/box.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace meshard {

std::int64_t numel_of(const Shape& shape) {
  std::int64_t product = 1;
  for (auto size : shape) product *= size;
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

bool is_inside(const Box& box, const Shape& shape) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) return false;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.offsets[dim] < 0 || box.sizes[dim] < 0 || box.offsets[dim] > shape[dim] - box.sizes[dim]) return false;
  }
  return true;
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

}  // namespace meshard
