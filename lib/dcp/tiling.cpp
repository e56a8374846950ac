#include "dcp/tiling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>

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

}  // namespace

std::string tiling_problem(const Shape& shape, std::span<const Box> boxes) {
  auto all = whole(shape);
  std::vector<const Box*> cover;
  cover.reserve(boxes.size());
  for (auto& box : boxes) {
    if (!is_inside(box, shape)) {
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
