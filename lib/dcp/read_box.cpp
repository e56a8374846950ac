#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "dcp/torch_archive.h"

namespace meshard {
namespace {

constexpr std::int64_t kStaging = 1 << 20;      // bytes: stays in the cache between reading and scattering
constexpr std::int64_t kReadThrough = 4 << 10;  // a gap of so many bytes is cheaper to read than to skip
constexpr std::int64_t kStraight = 16 << 10;    // runs of so many bytes are read into place, each by a call of its own

/// Reads a strided part of a storage into a strided tensor, dimension by dimension, in the order of the storage.
class BoxReader {
 public:
  BoxReader(const ReadableFile& file, const TensorItem& item, const Box& from, const at::Tensor& into)
      : file_(file), item_(item), width_(static_cast<std::int64_t>(c10::elementSize(item.dtype))), into_(into) {
    auto first = item.storage_offset;
    for (std::size_t d = 0; d < from.sizes.size(); ++d) {
      first += from.offsets[d] * item.strides[d];
      auto into_step = into.stride(static_cast<std::int64_t>(d));
      if (from.sizes[d] > 1) dims_.push_back({from.sizes[d], item.strides[d], into_step});
    }
    std::ranges::stable_sort(dims_, std::greater{}, &Dim::step);
    merge();
    read(0, first, into.storage_offset());
  }

 private:
  struct Dim {
    std::int64_t size, step, into_step;
  };

  /// Dimensions that continue each other on both sides become one.
  void merge() {
    std::vector<Dim> merged;
    for (auto& dim : dims_) {
      if (!merged.empty() && merged.back().step == dim.step * dim.size &&
          merged.back().into_step == dim.into_step * dim.size) {
        merged.back() = {merged.back().size * dim.size, dim.step, dim.into_step};
      } else {
        merged.push_back(dim);
      }
    }
    dims_ = std::move(merged);
  }

  bool same_dtype() const { return into_.scalar_type() == item_.dtype; }

  /// Elements from the first to the last of dimensions [d, end).
  std::int64_t extent(std::size_t d) const {
    std::int64_t elements = 1;
    for (; d < dims_.size(); ++d) elements += (dims_[d].size - 1) * dims_[d].step;
    return elements;
  }

  /// Whether reading through all gaps of dimensions [d, end) is cheaper than a call for each part.
  bool is_dense(std::size_t d) const {
    for (; d < dims_.size(); ++d) {
      if ((dims_[d].step - extent(d + 1)) * width_ > kReadThrough) return false;
    }
    return true;
  }

  bool is_run(std::size_t d) const {
    return d == dims_.size() || (d + 1 == dims_.size() && dims_[d].step == 1 && dims_[d].into_step == 1);
  }

  void read(std::size_t d, std::int64_t from, std::int64_t to) {
    auto run = dims_.empty() || dims_.back().step != 1 || dims_.back().into_step != 1 ? 1 : dims_.back().size;
    if (is_run(d) && same_dtype()) return read_run(d == dims_.size() ? 1 : run, from, to);
    if (d == dims_.size()) return read_block(d, 1, from, to);
    auto [size, step, into_step] = dims_[d];
    auto inner = extent(d + 1);
    bool straight = same_dtype() && run * width_ >= kStraight;
    auto fitting = inner * width_ > kStaging ? 0 : step == 0 ? size : (kStaging / width_ - inner) / step + 1;
    if (straight || fitting == 0 || !is_dense(d)) {
      for (std::int64_t i = 0; i < size; ++i) read(d + 1, from + i * step, to + i * into_step);
    } else {
      for (std::int64_t i = 0; i < size; i += fitting) {
        read_block(d, std::min(fitting, size - i), from + i * step, to + i * into_step);
      }
    }
  }

  void read_run(std::int64_t count, std::int64_t from, std::int64_t to) {
    auto begin = static_cast<std::byte*>(into_.storage().mutable_data()) + to * width_;
    file_.read(item_.data_offset + from * width_, {begin, static_cast<std::size_t>(count * width_)});
  }

  /// `count` steps of dimension d, and all of those after it, by way of the staging buffer.
  void read_block(std::size_t d, std::int64_t count, std::int64_t from, std::int64_t to) {
    Shape sizes, steps, into_steps;
    for (auto i = d; i < dims_.size(); ++i) {
      sizes.push_back(i == d ? count : dims_[i].size);
      steps.push_back(dims_[i].step);
      into_steps.push_back(dims_[i].into_step);
    }
    auto inner = d < dims_.size() ? (count - 1) * dims_[d].step + extent(d + 1) : 1;
    if (!staging_.defined()) staging_ = at::empty({kStaging}, at::kByte);
    auto* bytes = static_cast<std::byte*>(staging_.mutable_data_ptr());
    file_.read(item_.data_offset + from * width_, {bytes, static_cast<std::size_t>(inner * width_)});
    auto staged = at::from_blob(bytes, sizes, steps, into_.options().dtype(item_.dtype));
    into_.as_strided(sizes, into_steps, to).copy_(staged);
  }

  const ReadableFile& file_;
  const TensorItem& item_;
  std::int64_t width_;
  at::Tensor into_, staging_;
  std::vector<Dim> dims_;
};
}  // namespace

bool converts(at::ScalarType from, at::ScalarType to) {
  auto narrow = from == at::kBFloat16 || from == at::kHalf || from == at::kDouble;
  return from == to || (narrow && to == at::kFloat) || (from == at::kFloat && to == at::kBFloat16);
}

void read_box(const ReadableFile& file, const TensorItem& item, const Box& from, at::Tensor into,
              const std::string& what) {
  if (!into.is_cpu() || into.sizes() != at::IntArrayRef(from.sizes)) {
    throw ShapeError(
        fmt::format("{}: a box of sizes [{}] cannot be read into this tensor", what, fmt::join(from.sizes, ", ")));
  }
  bool inside = from.sizes.size() == item.sizes.size() && from.offsets.size() == item.sizes.size();
  for (std::size_t d = 0; inside && d < item.sizes.size(); ++d) {
    inside = from.offsets[d] >= 0 && from.sizes[d] <= item.sizes[d] && from.offsets[d] <= item.sizes[d] - from.sizes[d];
  }
  if (!inside) throw IoError(fmt::format("{}: the item has no box {}", what, to_string(from)));
  if (!converts(item.dtype, into.scalar_type())) {
    throw IoError(fmt::format("{}: {} cannot be read into {}", what, c10::toString(item.dtype),
                              c10::toString(into.scalar_type())));
  }
  if (from.numel() > 0) BoxReader(file, item, from, into.detach());
}

}  // namespace meshard
