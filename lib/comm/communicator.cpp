#include "comm/communicator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "base/error.h"
#include "comm/ledger.h"
#include "comm/recorder.h"

namespace meshard {

namespace {

bool supported(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kBFloat16:
    case at::kDouble:
    case at::kInt:
    case at::kLong:
    case at::kByte:
      return true;
    default:
      return false;
  }
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  auto* a_begin = static_cast<const char*>(a.const_data_ptr());
  auto* b_begin = static_cast<const char*>(b.const_data_ptr());
  return a_begin < b_begin + bytes_of(b) && b_begin < a_begin + bytes_of(a);
}

// A raw copy, as the backends' are: no autograd, no version bump.
void copy_flat(at::Tensor& to, const at::Tensor& from) {
  if (to.const_data_ptr() == from.const_data_ptr() || to.numel() == 0) return;
  at::AutoDispatchBelowADInplaceOrView raw;
  to.view(-1).copy_(from.view(-1));
}

std::int64_t row_elements(const at::Tensor& tensor) {
  return tensor.sizes().slice(1).empty() ? 1 : c10::multiply_integers(tensor.sizes().slice(1));
}

}  // namespace

Work& Work::operator=(Work&& other) {
  if (this == &other) return *this;
  wait();
  pending_ = std::move(other.pending_);
  recorder_ = other.recorder_;
  call_ = std::move(other.call_);
  lane_ = std::move(other.lane_);
  held_ = std::move(other.held_);
  return *this;
}

Work::~Work() {
  if (!pending_) return;
  if (std::uncaught_exceptions() > 0) {
    static_cast<void>(pending_.release());
    return;
  }
  try {
    wait();
  } catch (...) {
    // The next operation on this axis meets the same failure and can throw it.
  }
}

void Work::wait() {
  if (!pending_) return;
  auto pending = std::move(pending_);
  if (!recorder_) return pending->wait();
  recorder_->begin_wait(call_);
  try {
    pending->wait();
  } catch (...) {
    recorder_->end_wait(call_, false);
    throw;
  }
  recorder_->end_wait(call_, pending->complete_after_wait());
  auto held = std::exchange(held_, {});
  auto* checker = OrderChecker::active();
  if (!checker) return;
  if (!lane_.empty()) {
    checker->join(kComputeLane, checker->point(lane_));
    checker->give_back_lane(std::exchange(lane_, {}));
  }
  checker->raise();
}

Communicator::Communicator(std::string axis, int rank, std::vector<int> members, Recorder& recorder)
    : axis_(std::move(axis)),
      rank_(rank),
      size_(static_cast<int>(members.size())),
      members_(std::move(members)),
      recorder_(recorder) {}

CallRecord Communicator::enter(std::string_view operation, std::int64_t bytes, const CallInfo& info, Touches touches) {
  if (auto* checker = OrderChecker::active()) checker->raise();
  operation_ = {.name = std::string(operation),
                .unit = info.unit,
                .axis = axis_,
                .reads = std::move(touches.reads),
                .writes = std::move(touches.writes),
                .tensors = std::move(touches.tensors)};
  return recorder_.enter(operation, axis_, bytes, info);
}

Work Communicator::record(Work work, CallRecord call) {
  if (work.pending_->complete_after_wait()) recorder_.issued(call);
  work.pending_->issued(call);
  work.recorder_ = &recorder_;
  work.call_ = std::move(call);
  work.held_ = std::exchange(operation_.tensors, {});
  // A backend that runs on a timeline says there what comes before what. Else the operation comes after what the caller
  // has done, and before what it does once it has waited; operations on their way have no order among each other.
  auto* checker = OrderChecker::active();
  if (checker && work.pending_->complete_after_wait()) {
    work.lane_ = checker->borrow_lane();
    checker->join(work.lane_, checker->point(kComputeLane));
    checker->access(work.lane_, operation_);
  }
  return work;
}

void Communicator::check(std::string_view operation, const at::Tensor& tensor) const {
  if (!tensor.defined()) throw ShapeError(fmt::format("{} on axis {}: undefined tensor", operation, axis_));
  if (!tensor.is_contiguous()) {
    throw ShapeError(fmt::format("{} on axis {}: the tensor is not contiguous", operation, axis_));
  }
  if (!supported(tensor.scalar_type())) {
    throw ShapeError(fmt::format("{} on axis {}: dtype {} is not one of float, bfloat16, double, int, long, byte",
                                 operation, axis_, c10::toString(tensor.scalar_type())));
  }
}

void Communicator::check_pair(std::string_view operation, const at::Tensor& full, const at::Tensor& shard) const {
  check(operation, full);
  check(operation, shard);
  if (full.scalar_type() != shard.scalar_type() || full.device() != shard.device()) {
    throw ShapeError(fmt::format("{} on axis {}: the full tensor is {} on {}, the shard {} on {}", operation, axis_,
                                 c10::toString(full.scalar_type()), full.device().str(),
                                 c10::toString(shard.scalar_type()), shard.device().str()));
  }
  if (full.numel() != shard.numel() * size_) {
    throw ShapeError(fmt::format("{} on axis {}: the full tensor has {} elements, not {} x {} of the shard", operation,
                                 axis_, full.numel(), size_, shard.numel()));
  }
  auto* slice = static_cast<const char*>(full.const_data_ptr()) + rank_ * bytes_of(shard);
  if (overlap(full, shard) && shard.const_data_ptr() != slice) {
    throw ShapeError(fmt::format("{} on axis {}: the shard overlaps the full tensor but is not slice {} of it",
                                 operation, axis_, rank_));
  }
}

void Communicator::check_apart(std::string_view operation, const at::Tensor& out, const at::Tensor& in) const {
  check(operation, out);
  check(operation, in);
  if (out.scalar_type() != in.scalar_type() || out.device() != in.device()) {
    throw ShapeError(fmt::format("{} on axis {}: in is {} on {}, out {} on {}", operation, axis_,
                                 c10::toString(in.scalar_type()), in.device().str(), c10::toString(out.scalar_type()),
                                 out.device().str()));
  }
  if (overlap(out, in)) throw ShapeError(fmt::format("{} on axis {}: in and out overlap", operation, axis_));
}

Work Communicator::all_gather(at::Tensor full, at::Tensor shard, const CallInfo& info) {
  check_pair("all_gather", full, shard);
  if (size_ == 1) return copy_flat(full, shard), Work();
  auto call =
      enter("all_gather", gather_bytes(bytes_of(full), size_), info, {{range_of(shard)}, {range_of(full)}, {shard}});
  return record(do_all_gather(std::move(full), std::move(shard)), std::move(call));
}

namespace {
void check_reduction(std::string_view operation, const std::string& axis, const at::Tensor& tensor, ReduceOp op) {
  if (op == ReduceOp::Average && !at::isFloatingType(tensor.scalar_type())) {
    throw ShapeError(
        fmt::format("{} on axis {}: no Average of {}", operation, axis, c10::toString(tensor.scalar_type())));
  }
}
}  // namespace

Work Communicator::reduce_scatter(at::Tensor shard, at::Tensor full, ReduceOp op, const CallInfo& info) {
  check_pair("reduce_scatter", full, shard);
  check_reduction("reduce_scatter", axis_, full, op);
  if (size_ == 1) return copy_flat(shard, full), Work();
  auto call = enter("reduce_scatter", gather_bytes(bytes_of(full), size_), info, {{range_of(full)}, {range_of(shard)}});
  return record(do_reduce_scatter(std::move(shard), std::move(full), op), std::move(call));
}

Work Communicator::all_reduce(at::Tensor tensor, ReduceOp op, const CallInfo& info) {
  check("all_reduce", tensor);
  check_reduction("all_reduce", axis_, tensor, op);
  if (size_ == 1) return Work();
  auto call =
      enter("all_reduce", all_reduce_bytes(bytes_of(tensor), size_), info, {{range_of(tensor)}, {range_of(tensor)}});
  return record(do_all_reduce(std::move(tensor), op), std::move(call));
}

Work Communicator::broadcast(at::Tensor tensor, int root, const CallInfo& info) {
  check("broadcast", tensor);
  if (root < 0 || root >= size_) {
    throw ArgumentError(fmt::format("broadcast on axis {}: root {} of {} ranks", axis_, root, size_));
  }
  if (size_ == 1) return Work();
  auto range = range_of(tensor);
  bool sends = root == rank_;
  auto call = enter("broadcast", sends ? bytes_of(tensor) : 0, info,
                    sends ? Touches{{range}, {}} : Touches{{}, {range}});
  return record(do_broadcast(std::move(tensor), root), std::move(call));
}

Work Communicator::all_to_all(at::Tensor out, at::Tensor in, const CallInfo& info) {
  check_apart("all_to_all", out, in);
  if (out.numel() != in.numel() || in.numel() % size_ != 0) {
    throw ShapeError(
        fmt::format("all_to_all on axis {}: in has {} and out {} elements; both must be the same multiple "
                    "of {}",
                    axis_, in.numel(), out.numel(), size_));
  }
  if (size_ == 1) return copy_flat(out, in), Work();
  auto call = enter("all_to_all", gather_bytes(bytes_of(in), size_), info, {{range_of(in)}, {range_of(out)}});
  return record(do_all_to_all(std::move(out), std::move(in)), std::move(call));
}

namespace {
void check_rows(const std::string& axis, const char* which, const at::Tensor& tensor,
                std::span<const std::int64_t> rows, int size) {
  auto sum = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  bool negative = std::any_of(rows.begin(), rows.end(), [](auto count) { return count < 0; });
  if (static_cast<int>(rows.size()) != size || negative || tensor.dim() < 1 || tensor.size(0) != sum) {
    throw ShapeError(fmt::format("all_to_all_v on axis {}: {} has {} rows, but {} counts for {} ranks sum to {}", axis,
                                 which, tensor.dim() < 1 ? 0 : tensor.size(0), rows.size(), size, sum));
  }
}
}  // namespace

Work Communicator::all_to_all_v(at::Tensor out, at::Tensor in, std::span<const std::int64_t> out_rows,
                                std::span<const std::int64_t> in_rows, const CallInfo& info) {
  check_apart("all_to_all_v", out, in);
  check_rows(axis_, "out", out, out_rows, size_);
  check_rows(axis_, "in", in, in_rows, size_);
  if (row_elements(out) != row_elements(in) || out_rows[rank_] != in_rows[rank_]) {
    throw ShapeError(
        fmt::format("all_to_all_v on axis {}: rows of {} elements go out and of {} come in; {} and {} of "
                    "them stay here",
                    axis_, row_elements(in), row_elements(out), in_rows[rank_], out_rows[rank_]));
  }
  if (size_ == 1) return copy_flat(out, in), Work();
  auto row_bytes = row_elements(in) * static_cast<std::int64_t>(in.element_size());
  auto call = enter("all_to_all_v", (in.size(0) - in_rows[rank_]) * row_bytes, info,
                    {{range_of(in)}, {range_of(out)}});
  return record(do_all_to_all_v(std::move(out), std::move(in), {out_rows.begin(), out_rows.end()},
                                {in_rows.begin(), in_rows.end()}),
                std::move(call));
}

void Communicator::barrier(const CallInfo& info) {
  if (size_ == 1) return;
  auto call = enter("barrier", 0, info, {});
  record(do_barrier(), std::move(call)).wait();
}

}  // namespace meshard
