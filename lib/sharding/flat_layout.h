#pragma once
// Flat layout of one parameter group: where each tensor of the group lies in a one-dimensional buffer, and which of its
// rows each shard owns. Pure arithmetic: no tensors, no communication, the same answer on every rank.
// Algorithm: sharding.md section 2 (after Megatron-FSDP v2); goldens: tests/goldens/layout.json.

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

using Shape = std::vector<std::int64_t>;

/// Rows [begin, end) of a tensor's dimension 0. Empty when begin == end.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t count() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

/// Elements [begin, end) of a flat buffer.
struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t count() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

class GlobalLayout {
 public:
  /// Local. Places tensors of the given shapes, in order, for `num_shards` equal shards.
  ///
  /// Guarantees: every offset is a multiple of its tensor's row size; tensors do not overlap; `size()` is a multiple of
  /// `chunk() * num_shards`, so no shard boundary ever cuts a row.
  ///
  /// Throws ShapeError for a 0-d tensor or a zero dimension other than dimension 0 (the message has the index and the
  /// shape), ArgumentError for num_shards < 1. An empty list is legal and has size 0.
  static GlobalLayout build(std::span<const Shape> shapes, int num_shards);

  /// Elements of the whole buffer, padding included.
  std::int64_t size() const { return size_; }
  /// Least common multiple of the row sizes.
  std::int64_t chunk() const { return chunk_; }
  int num_shards() const { return num_shards_; }
  /// Elements that belong to no tensor.
  std::int64_t padding() const;

  int count() const { return static_cast<int>(tensors_.size()); }
  const Shape& shape(int index) const { return tensors_[index].shape; }
  std::int64_t offset(int index) const { return tensors_[index].offset; }
  std::int64_t numel(int index) const { return tensors_[index].numel; }
  /// Elements of one row: the product of the dimensions after the first.
  std::int64_t row_size(int index) const { return tensors_[index].row; }

  /// Local. Elements of shard `shard` of `num_shards()`: equal, contiguous, in order.
  FlatRange shard(int shard) const;

  /// Local. The rows of tensor `index` that lie in `range`, whose ends must not cut a row (shard boundaries never do).
  RowRange rows_in(int index, const FlatRange& range) const;

  /// Local. The rows of tensor `index` that shard `shard` owns; empty if it owns none.
  RowRange rows(int index, int shard) const { return rows_in(index, this->shard(shard)); }

  /// Local. The parts of `range` that belong to no tensor, ascending.
  std::vector<FlatRange> gaps_in(const FlatRange& range) const;

 private:
  struct Placed {
    Shape shape;
    std::int64_t row = 1;
    std::int64_t numel = 0;
    std::int64_t offset = 0;
  };
  std::vector<Placed> tensors_;
  std::int64_t chunk_ = 1;
  std::int64_t size_ = 0;
  int num_shards_ = 1;
};

}  // namespace meshard
