#pragma once
// One flat tensor, distributed: a 1-D local tensor, the axes it lies on, and one placement per axis. DESIGN.md
// section 3. With axes [outer, inner] a rank's part of a sharded buffer starts at
//   inner_rank * S/inner + outer_rank * S/(inner * outer).

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "sharding/flat_layout.h"
#include "sharding/placement.h"

namespace meshard {

/// Outer first. The communicators must outlive the buffers on them.
using CommAxes = std::vector<Communicator*>;

/// Local. The elements that a rank holds of a buffer of `size` elements under these placements: the Flat axes cut, last
/// axis first, each evenly.
IndexRange held_range(std::int64_t size, const CommAxes& axes, const Placements& placements);

class DBuffer {
 public:
  using LayoutPtr = std::shared_ptr<const GlobalLayout>;

  DBuffer() = default;

  /// Local. Takes `local` as this rank's part. ShapeError unless it is 1-D, contiguous and of exactly the right numel.
  static DBuffer from_local(at::Tensor local, LayoutPtr layout, CommAxes axes, Placements placements,
                            ReduceOp partial = ReduceOp::Average);

  /// Local. Uninitialised values, padding zero.
  static DBuffer empty(LayoutPtr layout, CommAxes axes, Placements placements, const at::TensorOptions& options);

  /// Local: no broadcast. Lays full tensors out; each rank copies its own slice of its own full copy. Meta tensors give
  /// shape and dtype only: their ranges stay uninitialised. ArgumentError for an empty list or mixed dtypes.
  static DBuffer distribute(std::span<const at::Tensor> tensors, CommAxes axes, Placements placements,
                            at::Device device);

  /// Local. Same values in another dtype; the same object if nothing changes and no `out` is given.
  DBuffer cast(at::ScalarType dtype, std::optional<DBuffer> out = {}) const;

  /// A redistribution under way: `buffer` holds the result once `work` has been waited for.
  struct Started;

  /// Collective over the axis that changes; exactly one may. Flat->Replicate all-gather; Partial->Replicate all-reduce
  /// (in place in `out` or a copy); Partial->Flat reduce-scatter; Replicate->Flat a local view, or a copy into `out`;
  /// Replicate->Partial relabels (averages only); same->same is itself. NotImplementedError for anything else,
  /// ArgumentError if `out` does not fit.
  Started start_redistribute(Placements to, std::optional<DBuffer> out = {}, const CallInfo& info = {}) const;
  /// Collective over the axis that changes. The same, waited for.
  DBuffer redistribute(Placements to, std::optional<DBuffer> out = {}, const CallInfo& info = {}) const;

  /// Local. The elements of tensor `index` that lie here, 1-D, a view; of shape (0) if there are none.
  at::Tensor get_local(int index) const { return part_of(local_, index); }
  /// Local. The same of another tensor that is laid out as local() is.
  at::Tensor part_of(const at::Tensor& flat, int index) const;
  /// Local. Which elements of tensor `index`, flattened, lie here.
  IndexRange elements(int index) const { return layout_->elements_in(index, range_); }

  /// Local. Takes what lies here of tensor `index` from all of it.
  void copy_from(const at::Tensor& whole, int index);

  /// Local. Sets padding to zero: it holds no values, and must be zero before anything reads the whole buffer.
  void zero_gaps();

  /// Local. Frees the bytes; views stay valid objects for autograd, and see the new memory after reallocate().
  void release_storage();
  /// Local. Gives the buffer memory again, content undefined.
  void reallocate_storage();

  const at::Tensor& local() const { return local_; }
  const GlobalLayout& layout() const { return *layout_; }
  const LayoutPtr& layout_ptr() const { return layout_; }
  const CommAxes& axes() const { return axes_; }
  const Placements& placements() const { return placements_; }
  IndexRange range() const { return range_; }
  bool defined() const { return local_.defined(); }

 private:
  DBuffer(at::Tensor local, LayoutPtr layout, CommAxes axes, Placements placements, ReduceOp partial);
  DBuffer relabelled(at::Tensor local, Placements placements) const;
  DBuffer target(const Placements& to, const std::optional<DBuffer>& out) const;
  int changed_axis(const Placements& to) const;

  at::Tensor local_;
  LayoutPtr layout_;
  CommAxes axes_;
  Placements placements_;
  ReduceOp partial_ = ReduceOp::Average;
  IndexRange range_;
};

struct DBuffer::Started {
  DBuffer buffer;
  Work work;
};

}  // namespace meshard
