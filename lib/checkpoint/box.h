#pragma once
// A box of a tensor: where it begins and how far it goes, per dimension. Pure arithmetic.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshard {

using Shape = std::vector<std::int64_t>;

struct Box {
  Shape offsets;
  Shape sizes;

  std::int64_t numel() const;  ///< 1 for a 0-d tensor
  bool operator==(const Box&) const = default;
};

/// Local. "[0:4, 8:16]", for messages.
std::string to_string(const Box& box);

/// Local. The box of a whole tensor.
Box whole(const Shape& shape);

/// Local. What two boxes of one tensor share; numel 0 if nothing.
Box overlap(const Box& a, const Box& b);

/// Local. The same box as seen from `origin`.
Box shifted(Box box, const Shape& origin);

/// Local. Rows [begin, begin + count) of a matrix [items * rows_per_item, columns] as boxes of the tensor
/// [items, rows_per_item, columns]: up to three, the end of one item, whole items, the begin of one. dcp.md section 4.
std::vector<Box> boxes_of_rows(std::int64_t begin, std::int64_t count, std::int64_t rows_per_item,
                               std::int64_t columns);

/// Local. Empty if the boxes cover a tensor of this shape exactly once; else what is wrong: a box outside, two that
/// overlap, or the first place, in order, that none covers or more than one. Boxes without elements do not count. Time
/// O(n d), in n boxes of d dimensions, and O(n d (log n + d)) if something is wrong, whatever the boxes are. Of at most
/// 64 dimensions, boxes that tile are never refused, others pass with a probability below 2^-54, a new one each time.
std::string tiling_problem(const Shape& shape, std::span<const Box> boxes);

}  // namespace meshard
