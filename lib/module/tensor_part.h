#pragma once
// Where a rank's local tensor lies in the tensor of all ranks together. What is cut, and over which ranks, is known to
// whoever makes the part: expert parallelism (a range of experts), a column split (a range of rows) and a row split (a
// range of columns) are all one box. First values, hashes and files ask only the part.

#include <functional>

#include "base/box.h"

namespace meshard {

class TensorPart {
 public:
  TensorPart() = default;
  /// Local. All of a tensor of this shape.
  explicit TensorPart(Shape whole_shape);
  /// Local. The box `box` of a tensor of shape `whole_shape`. The local tensor has the box's elements in row-major
  /// order; its own shape may be another one of as many elements (experts: their matrices, one below the other).
  /// ShapeError if the box is not inside.
  TensorPart(Shape whole_shape, Box box);

  const Shape& whole_shape() const { return whole_shape_; }
  const Box& box() const { return box_; }
  std::int64_t numel() const { return box_.numel(); }

  /// Local. The boxes of the whole tensor that elements `range` of the local one are, in their order: of d dimensions
  /// at most 2 (d - 1) + 1 (of a matrix: the end of one row, whole rows, the begin of one).
  std::vector<Box> boxes(const IndexRange& range) const;

  /// Elements that follow each other in both.
  struct Run {
    std::int64_t local;  ///< index of the first one in the local tensor, flattened
    std::int64_t whole;  ///< and in the whole one
    std::int64_t count;
  };
  /// Local. Elements `range` of the local tensor as the fewest runs, ascending: one if the box cuts no dimension after
  /// the first.
  void for_each_run(const IndexRange& range, const std::function<void(const Run&)>& visit) const;

 private:
  Shape whole_shape_;
  Box box_;
};

}  // namespace meshard
