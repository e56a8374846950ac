#include "sharding/dbuffer.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <fmt/format.h>

#include "base/error.h"
#include "sharding/storage.h"

namespace meshard {

IndexRange held_range(std::int64_t size, const CommAxes& axes, const Placements& placements) {
  IndexRange range{0, size};
  for (int a = static_cast<int>(axes.size()) - 1; a >= 0; --a) {
    if (placements[a] != Placement::Flat) continue;
    auto step = range.count() / axes[a]->size();
    range = {range.begin + axes[a]->rank() * step, range.begin + (axes[a]->rank() + 1) * step};
  }
  return range;
}

DBuffer::DBuffer(at::Tensor local, LayoutPtr layout, CommAxes axes, Placements placements, ReduceOp partial)
    : local_(std::move(local)),
      layout_(std::move(layout)),
      axes_(std::move(axes)),
      placements_(std::move(placements)),
      partial_(partial) {
  if (placements_.size() != axes_.size()) {
    throw ArgumentError(fmt::format("{} placements for {} axes", placements_.size(), axes_.size()));
  }
  check_suffix(placements_);
  range_ = held_range(layout_->size(), axes_, placements_);
}

DBuffer DBuffer::from_local(at::Tensor local, LayoutPtr layout, CommAxes axes, Placements placements,
                            ReduceOp partial) {
  DBuffer buffer(std::move(local), std::move(layout), std::move(axes), std::move(placements), partial);
  auto& tensor = buffer.local_;
  if (tensor.dim() != 1 || !tensor.is_contiguous() || tensor.numel() != buffer.range_.count()) {
    throw ShapeError(
        fmt::format("a local part must be 1-D, contiguous and of {} elements; got {} dimensions, {} elements",
                    buffer.range_.count(), tensor.dim(), tensor.numel()));
  }
  return buffer;
}

DBuffer DBuffer::empty(LayoutPtr layout, CommAxes axes, Placements placements, const at::TensorOptions& options) {
  DBuffer buffer({}, std::move(layout), std::move(axes), std::move(placements), ReduceOp::Average);
  buffer.local_ = at::empty({buffer.range_.count()}, options);
  buffer.zero_gaps();
  return buffer;
}

DBuffer DBuffer::distribute(std::span<const at::Tensor> tensors, CommAxes axes, Placements placements,
                            at::Device device) {
  if (tensors.empty()) throw ArgumentError("cannot distribute an empty list of tensors");
  std::vector<Shape> shapes;
  for (auto& tensor : tensors) {
    if (tensor.scalar_type() != tensors[0].scalar_type())
      throw ArgumentError("cannot distribute tensors of mixed dtypes");
    shapes.push_back(tensor.sizes().vec());
  }
  int shards = 1;
  for (auto* axis : axes) shards *= axis->size();
  auto layout = std::make_shared<const GlobalLayout>(GlobalLayout::build(shapes, shards));
  auto buffer = empty(layout, std::move(axes), std::move(placements), tensors[0].options().device(device));
  for (int i = 0; i < layout->count(); ++i) {
    if (tensors[i].is_meta()) continue;
    buffer.copy_from(tensors[i], i);
  }
  return buffer;
}

DBuffer DBuffer::cast(at::ScalarType dtype, std::optional<DBuffer> out) const {
  if (!out) return dtype == local_.scalar_type() ? *this : relabelled(local_.to(dtype), placements_);
  if (out->local_.scalar_type() != dtype || out->range_ != range_) {
    throw ArgumentError("cast: `out` has another dtype or another part of the buffer");
  }
  out->local_.copy_(local_);
  return *out;
}

DBuffer DBuffer::relabelled(at::Tensor local, Placements placements) const {
  return DBuffer(std::move(local), layout_, axes_, std::move(placements), partial_);
}

int DBuffer::changed_axis(const Placements& to) const {
  int changed = -1;
  for (int a = 0; a < static_cast<int>(axes_.size()); ++a) {
    if (placements_[a] == to[a]) continue;
    if (changed >= 0) {
      throw NotImplementedError(fmt::format("{} -> {} changes two axes; redistribute one axis at a time",
                                            to_string(placements_), to_string(to)));
    }
    changed = a;
  }
  return changed;
}

DBuffer DBuffer::target(const Placements& to, const std::optional<DBuffer>& out) const {
  if (!out) {
    auto result = DBuffer::empty(layout_, axes_, to, local_.options());
    result.partial_ = partial_;
    return result;
  }
  if (out->axes_ != axes_ || out->placements_ != to || out->layout_ != layout_ ||
      out->local_.scalar_type() != local_.scalar_type() || out->local_.device() != local_.device()) {
    throw ArgumentError(
        fmt::format("redistribute to {}: `out` has another mesh, placement ({}), layout, dtype or device",
                    to_string(to), to_string(out->placements_)));
  }
  return *out;
}

DBuffer::Started DBuffer::start_redistribute(Placements to, std::optional<DBuffer> out, const CallInfo& info) const {
  if (to.size() != axes_.size()) throw ArgumentError(fmt::format("{} placements for {} axes", to.size(), axes_.size()));
  check_suffix(to);
  int axis = changed_axis(to);
  if (axis < 0) {
    if (!out) return {*this, {}};
    auto result = target(to, out);
    result.local_.copy_(local_);
    return {result, {}};
  }
  using enum Placement;
  auto from = placements_[axis];
  if (from == Flat && to[axis] == Replicate) {
    auto result = target(to, out);
    return {result, axes_[axis]->all_gather(result.local_, local_, info)};
  }
  if (from == Partial && to[axis] == Replicate) {
    auto result = target(to, out);
    if (!result.local_.is_same(local_)) result.local_.copy_(local_);
    return {result, axes_[axis]->all_reduce(result.local_, partial_, info)};
  }
  if (from == Partial && to[axis] == Flat) {
    auto result = target(to, out);
    return {result, axes_[axis]->reduce_scatter(result.local_, local_, partial_, info)};
  }
  if (from == Replicate && to[axis] == Flat) {
    auto part = held_range(layout_->size(), axes_, to);
    auto view = local_.narrow(0, part.begin - range_.begin, part.count());
    if (!out) return {relabelled(view, to), {}};
    auto result = target(to, out);
    result.local_.copy_(view);
    return {result, {}};
  }
  if (from == Replicate && to[axis] == Partial && partial_ == ReduceOp::Average && !out) {
    return {relabelled(local_, to), {}};
  }
  throw NotImplementedError(fmt::format("redistribute {} -> {}", to_string(placements_), to_string(to)));
}

DBuffer DBuffer::redistribute(Placements to, std::optional<DBuffer> out, const CallInfo& info) const {
  auto [buffer, work] = start_redistribute(std::move(to), std::move(out), info);
  work.wait();
  return buffer;
}

at::Tensor DBuffer::part_of(const at::Tensor& flat, int index) const {
  auto held = elements(index);
  auto begin = held.count() ? layout_->offset(index) + held.begin - range_.begin : 0;
  return flat.narrow(0, begin, held.count());
}

void DBuffer::copy_from(const at::Tensor& whole, int index) {
  auto held = elements(index);
  get_local(index).copy_(whole.detach().reshape({-1}).narrow(0, held.begin, held.count()));
}

void DBuffer::zero_gaps() {
  for (auto& gap : layout_->gaps_in(range_)) local_.narrow(0, gap.begin - range_.begin, gap.count()).zero_();
}

void DBuffer::release_storage() {
  detach_memory(local_);
}

void DBuffer::reallocate_storage() {
  attach_memory(local_, at::empty({local_.numel()}, local_.options()));
  zero_gaps();
}

}  // namespace meshard
