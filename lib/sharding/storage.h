#pragma once
// Memory that comes and goes under tensors that stay: the unsharded storage of a unit. A tensor is made once, with all
// its views and the autograd leaves on it; only the bytes below are attached and detached. Neither counts as a change
// for autograd's version check. DESIGN.md section 11.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace meshard {

/// Local. A 1-D tensor of `numel` elements without memory.
at::Tensor tensor_without_memory(std::int64_t numel, const at::TensorOptions& options);

/// Local. Puts the memory of `block` (kept alive) under `tensor` and all its views. `block` must be large enough.
void attach_memory(const at::Tensor& tensor, const at::Tensor& block);

/// Local. Takes the memory away. Reading the tensor is an error until the next attach_memory().
void detach_memory(const at::Tensor& tensor);

/// The sizes of a pool's blocks: which one serves a request, and how much there is in all. Without memory, so that
/// `plan` knows what a run will reach.
class BlockSizes {
 public:
  /// Local. Takes a block of at least `bytes` and returns its size: the smallest free one that is large enough but less
  /// than twice as large, else a new one. Sizes are rounded up by less than 1/64, so that an embedding and a head of
  /// the same matrix and a norm take turns in one block.
  std::int64_t take(std::int64_t bytes);
  void give_back(std::int64_t block) { free_.insert(block); }

  /// Bytes of all blocks ever made: the peak.
  std::int64_t allocated() const { return allocated_; }

 private:
  std::multiset<std::int64_t> free_;
  std::int64_t allocated_ = 0;
};

/// Blocks of memory for unsharded parameters and gradients. A block that is given back is reused, never freed: after
/// the first step nothing is allocated any more.
class BufferPool {
 public:
  explicit BufferPool(at::Device device) : device_(device) {}

  /// Local. A block of at least `bytes`, as BlockSizes picks it.
  at::Tensor acquire(std::int64_t bytes);
  void give_back(at::Tensor block);

  /// Bytes ever allocated: the peak.
  std::int64_t allocated_bytes() const { return sizes_.allocated(); }

 private:
  at::Device device_;
  BlockSizes sizes_;
  std::multimap<std::int64_t, at::Tensor> free_;
};

}  // namespace meshard
