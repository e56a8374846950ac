#pragma once
// Boxes of tensors and ranges of indices. Pure arithmetic.

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

using Shape = std::vector<std::int64_t>;

/// Local. Elements of a tensor of this shape: 1 for a 0-d one.
std::int64_t numel_of(const Shape& shape);

/// Indices [begin, end). Empty when begin == end.
struct IndexRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t count() const { return end - begin; }
  bool operator==(const IndexRange&) const = default;
};

/// Where a part of a tensor begins and how far it goes, per dimension.
struct Box {
  Shape offsets;
  Shape sizes;

  std::int64_t numel() const { return numel_of(sizes); }
  bool operator==(const Box&) const = default;
};

/// Local. "[0:4, 8:16]", for messages.
std::string to_string(const Box& box);

/// Local. The box of a whole tensor.
Box whole(const Shape& shape);

/// Local. Whether `box` has the tensor's dimensions and lies in it.
bool is_inside(const Box& box, const Shape& shape);

/// Local. What two boxes of one tensor share; numel 0 if nothing.
Box overlap(const Box& a, const Box& b);

/// Local. The same box as seen from `origin`.
Box shifted(Box box, const Shape& origin);

}  // namespace meshard
