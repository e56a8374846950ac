#include "mesh/bandwidth.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <bit>

#include "comm/ledger.h"
#include "mesh/placement_check.h"

namespace meshard {

namespace {

constexpr std::int64_t kElement = 4;
constexpr std::int64_t kProbe = 256 << 10;  // from here on time grows with size; always affordable
constexpr double kBatchSeconds = 1e-3;      // short operations are timed several at a time
constexpr double kShort = 10e-3;            // one hiccup of the machine may be all of it
constexpr int kMostInBatch = 20, kMostRepetitions = 30;
constexpr double kShareOfOne = 0.25;  // of a measurement's time: a first one, and some to take a median of

std::int64_t power_of_two_below(double bytes) {
  return bytes < kElement ? 0 : static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(bytes)));
}

/// One operation of one axis on the begin of buffers that fit the largest size.
struct Operation {
  Communicator& axis;
  bool gathers;
  at::Tensor full, shard;

  void issue(std::int64_t bytes) const {
    auto part = shard.narrow(0, 0, bytes / kElement), whole = full.narrow(0, 0, bytes / kElement * axis.size());
    CallInfo info{.unit = "preflight"};
    (gathers ? axis.all_gather(whole, part, info) : axis.reduce_scatter(part, whole, ReduceOp::Average, info)).wait();
  }
  /// Seconds of one, on this rank, of `count` in a row that all ranks begin together.
  double time(std::int64_t bytes, int count) const {
    axis.barrier();
    synchronize(full.device());
    auto start = steady_seconds();
    for (int i = 0; i < count; ++i) issue(bytes);
    synchronize(full.device());
    return (steady_seconds() - start) / count;
  }
};

/// Shares what is left of the time among the measurements that are left.
class BandwidthMeter {
 public:
  BandwidthMeter(const Mesh& mesh, const BandwidthOptions& options)
      : mesh_(mesh), options_(options), axes_(distinct_axes(mesh.shape())), start_(steady_seconds()) {
    left_ = axes_.size() * 2 * options.sizes.size();
    most_bytes_ = -max_over_ranks(mesh.world(), {-static_cast<double>(options.most_bytes)})[0];
    std::int64_t full = 0, shard = 0;
    for (auto axis : axes_) {
      auto largest = std::min(options.sizes.back(), limit(axis));
      shard = std::max(shard, largest);
      full = std::max(full, largest * mesh.size(axis));
    }
    // Written to: pages that were only asked for would all be one.
    auto on_device = at::device(mesh.world().device()).dtype(at::kFloat);
    full_ = at::ones({full / kElement}, on_device);
    shard_ = at::ones({shard / kElement}, on_device);
  }

  std::vector<Bandwidth> measure() {
    for (auto axis : axes_) {
      for (bool gathers : {true, false}) measure(axis, {mesh_.axis(axis), gathers, full_, shard_});
    }
    return std::move(measured_);
  }

 private:
  std::int64_t limit(Axis axis) const { return power_of_two_below(most_bytes_ / (mesh_.size(axis) + 1)); }

  void measure(Axis axis, const Operation& operation) {
    auto probe = std::min({kProbe, options_.sizes.back(), limit(axis)});
    operation.time(probe, 1);
    auto seconds_per_byte = agreed(operation.time(probe, 1))[0] / static_cast<double>(probe);
    std::int64_t before = 0;
    for (auto wanted : options_.sizes) {
      auto allowance = (options_.seconds - agreed(0.0)[1]) / static_cast<double>(left_--);
      auto fits = std::max(probe, power_of_two_below(allowance * kShareOfOne / seconds_per_byte));
      auto bytes = std::min({wanted, fits, limit(axis)});
      if (bytes <= before) continue;
      auto& result = measured_.emplace_back(measure(operation, bytes, allowance));
      result.axis = axis;
      result.wanted = wanted;
      before = bytes;
      if (bytes >= kProbe) seconds_per_byte = result.min_seconds / static_cast<double>(bytes);
    }
  }

  Bandwidth measure(const Operation& operation, std::int64_t bytes, double allowance) const {
    auto first = agreed(operation.time(bytes, 1))[0];
    if (first < kShort) first = std::min(first, agreed(operation.time(bytes, kMostInBatch))[0]);
    int batch = std::clamp(static_cast<int>(kBatchSeconds / first), 1, kMostInBatch);
    int repetitions = std::clamp(static_cast<int>(allowance / (first * batch)), 1, kMostRepetitions);
    std::vector<double> times;
    for (int i = 0; i < repetitions; ++i) times.push_back(operation.time(bytes, batch));
    times = max_over_ranks(mesh_.world(), times);
    return {.ranks = operation.axis.size(),
            .operation = operation.gathers ? "all_gather" : "reduce_scatter",
            .bytes = bytes,
            .repetitions = repetitions,
            .median_seconds = median_of(times),
            .min_seconds = *std::ranges::min_element(times)};
  }

  /// The largest of the ranks' values, and what they have used of the time.
  std::vector<double> agreed(double value) const {
    return max_over_ranks(mesh_.world(), {value, steady_seconds() - start_});
  }

  const Mesh& mesh_;
  const BandwidthOptions& options_;
  std::vector<Axis> axes_;
  double start_, most_bytes_ = 0.0;
  std::size_t left_;
  at::Tensor full_, shard_;
  std::vector<Bandwidth> measured_;
};

}  // namespace

double Bandwidth::gb_per_s(double seconds) const {
  return static_cast<double>(gather_bytes(bytes * ranks, ranks)) / seconds / 1e9;
}

std::vector<Axis> distinct_axes(const MeshShape& shape) {
  std::vector<Axis> axes;
  std::vector<std::vector<int>> groups;
  for (auto axis : {Axis::DpOuter, Axis::DpShard, Axis::World, Axis::ExpertDp, Axis::Expert}) {
    // Groups are blocks or combs of ranks: those that are the same for rank 0 are for all.
    auto group = shape.members(axis, 0);
    std::ranges::sort(group);
    if (group.size() == 1 || std::ranges::find(groups, group) != groups.end()) continue;
    groups.push_back(group);
    axes.push_back(axis);
  }
  return axes;
}

std::vector<Bandwidth> measure_bandwidth(const Mesh& mesh, const BandwidthOptions& options) {
  if (mesh.world().size() == 1) return {};
  return BandwidthMeter(mesh, options).measure();
}

std::vector<double> max_over_ranks(World& world, const std::vector<double>& values) {
  auto tensor = at::empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
  std::ranges::copy(values, tensor.mutable_data_ptr<double>());
  world.control().all_reduce(tensor, ReduceOp::Max).wait();
  auto* begin = tensor.const_data_ptr<double>();
  return {begin, begin + values.size()};
}

void synchronize(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

}  // namespace meshard
