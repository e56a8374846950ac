#pragma once
// Flat layout of one parameter group: where each tensor of the group lies in a one-dimensional buffer, and which of its
// elements each shard owns. Packed: a shard may begin and end within a row, as optimizers work element by element and
// checkpoints take any box. Pure arithmetic: no tensors, no communication, the same answer on every rank. Goldens:
// tests/goldens/layout_packed.json. DESIGN.md section 2.

#include <cstdint>
#include <span>
#include <vector>

#include "base/box.h"

namespace meshard {

class GlobalLayout {
 public:
  /// Every tensor and every shard begins at a multiple of so many elements: 128 bytes in bf16, what matrix products,
  /// vector loads and bulk copies want.
  static constexpr std::int64_t kAlignment = 64;

  /// Local. Places tensors of the given shapes, in order, each at the next multiple of kAlignment, for `num_shards`
  /// equal shards. Padding is below kAlignment * (tensors + num_shards) elements.
  ///
  /// Throws ShapeError for a 0-d tensor or a zero dimension other than dimension 0 (the message has the index and the
  /// shape), ArgumentError for num_shards < 1. An empty list is legal and has size 0.
  static GlobalLayout build(std::span<const Shape> shapes, int num_shards);

  /// Elements of the whole buffer, padding included: a multiple of kAlignment * num_shards().
  std::int64_t size() const { return size_; }
  int num_shards() const { return num_shards_; }
  /// Elements that belong to no tensor.
  std::int64_t padding() const;

  int count() const { return static_cast<int>(tensors_.size()); }
  const Shape& shape(int index) const { return tensors_[index].shape; }
  std::int64_t offset(int index) const { return tensors_[index].offset; }
  std::int64_t numel(int index) const { return tensors_[index].numel; }

  /// Local. Elements of shard `shard` of `num_shards()`, in the buffer: equal, contiguous, in order.
  IndexRange shard(int shard) const;

  /// Local. The elements of tensor `index`, flattened, that lie in `range` of the buffer; {0, 0} if none does.
  IndexRange elements_in(int index, const IndexRange& range) const;

  /// Local. The elements of tensor `index`, flattened, that shard `shard` owns.
  IndexRange elements(int index, int shard) const { return elements_in(index, this->shard(shard)); }

  /// Local. The parts of `range` that belong to no tensor, ascending.
  std::vector<IndexRange> gaps_in(const IndexRange& range) const;

 private:
  struct Placed {
    Shape shape;
    std::int64_t numel = 0;
    std::int64_t offset = 0;
  };
  std::vector<Placed> tensors_;
  std::int64_t size_ = 0;
  int num_shards_ = 1;
};

}  // namespace meshard
