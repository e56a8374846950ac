#include "checkpoint/box.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "base/hash.h"

namespace meshard {
namespace {

/// Numbers modulo the prime 2^61 - 1.
class Residue {
 public:
  Residue(std::uint64_t value = 0) : value_(value % kPrime) {}
  Residue operator+(Residue other) const { return {value_ + other.value_}; }
  Residue operator-(Residue other) const { return {value_ + kPrime - other.value_}; }
  Residue operator*(Residue other) const {
    auto product = static_cast<unsigned __int128>(value_) * other.value_;
    return {static_cast<std::uint64_t>(product & kPrime) + static_cast<std::uint64_t>(product >> 61)};
  }
  bool operator==(const Residue&) const = default;

 private:
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
  std::uint64_t value_;
};

/// How often each element is covered is a function of its place. Its sum, each element weighted by a random number, and
/// that a product of one for each coordinate, is a sum over boxes: the weight of a box is the product of those of its
/// sides, each a difference of two random numbers, one for each place where a side may begin or end. So a cover is
/// compared with the whole tensor in one pass over the boxes. Equal ones always have equal sums; two that differ have
/// equal ones with a probability of at most 64 / 2^61 (a polynomial of the degree of the dimensions that is not zero:
/// Schwartz, Zippel), whatever the boxes are: nobody who chose them knew the numbers.
class Weights {
 public:
  Weights() {
    std::random_device random;
    seed_ = std::uint64_t{random()} << 32 | random();
  }

  /// Of a box's sides in dimensions [from, end).
  Residue of(const Box& box, std::size_t from = 0) const {
    Residue product = 1;
    for (auto dim = from; dim < box.sizes.size(); ++dim) {
      auto key = mix64(seed_ + dim);
      product = product * (Residue(mix64(key ^ static_cast<std::uint64_t>(box.offsets[dim] + box.sizes[dim]))) -
                           Residue(mix64(key ^ static_cast<std::uint64_t>(box.offsets[dim]))));
    }
    return product;
  }

 private:
  std::uint64_t seed_;
};

/// The first coordinate of dimension `dim` at which the boxes, from there on, do not cover what the whole tensor has.
std::int64_t first_difference(const std::vector<const Box*>& boxes, const Box& all, std::size_t dim,
                              const Weights& weights) {
  std::vector<std::pair<std::int64_t, Residue>> changes = {{0, Residue() - weights.of(all, dim + 1)}};
  for (auto* box : boxes) {
    auto weight = weights.of(*box, dim + 1);
    changes.push_back({box->offsets[dim], weight});
    changes.push_back({box->offsets[dim] + box->sizes[dim], Residue() - weight});
  }
  std::ranges::sort(changes, {}, [](auto& change) { return change.first; });
  Residue sum;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    sum = sum + changes[i].second;
    bool last = i + 1 == changes.size() || changes[i + 1].first != changes[i].first;
    if (last && sum != Residue()) return changes[i].first;
  }
  return 0;
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
  std::vector<const Box*> cover;
  cover.reserve(boxes.size());
  for (auto& box : boxes) {
    if (!inside(box, shape)) {
      return fmt::format("box {} is not inside the tensor's shape [{}]", to_string(box), fmt::join(shape, ", "));
    }
    if (std::ranges::count(box.sizes, 0) == 0) cover.push_back(&box);
  }
  if (std::ranges::count(shape, 0) > 0) return "";
  Weights weights;
  Residue sum;
  for (auto* box : cover) sum = sum + weights.of(*box);
  if (sum == weights.of(all)) return "";
  Shape at(shape.size());
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    at[dim] = first_difference(cover, all, dim, weights);
    std::erase_if(cover, [&](auto* box) {
      return at[dim] < box->offsets[dim] || at[dim] >= box->offsets[dim] + box->sizes[dim];
    });
  }
  auto place = fmt::format("[{}]", fmt::join(at, ", "));
  if (cover.empty()) return fmt::format("no box covers element {}", place);
  return fmt::format("boxes {} and {} overlap at element {}", to_string(*cover.front()), to_string(*cover.at(1)),
                     place);
}

}  // namespace meshard
