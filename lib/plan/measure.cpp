#include "plan/measure.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>

#include "base/error.h"
#include "comm/ledger.h"
#include "mesh/placement_check.h"
#include "nn/attention.h"

namespace meshard {

namespace {

double least(World& world, double value) {
  return -max_over_ranks(world, {-value})[0];
}

double product_flops(World& world, at::ScalarType dtype) {
  auto device = world.device();
  std::int64_t n = device.is_cpu() ? 512 : 4096;
  auto options = at::device(device).dtype(dtype);
  auto a = at::ones({n, n}, options), b = at::ones({n, n}, options), c = at::ones({n, n}, options);
  return median_rate(world, 2.0 * static_cast<double>(n * n * n), [&] {
    at::mm_out(c, a, b);
    synchronize(device);
  });
}

double attention_flops(World& world) {
  auto device = world.device();
  bool cpu = device.is_cpu();
  std::int64_t length = cpu ? 512 : 4096, heads = cpu ? 4 : 16, width = cpu ? 64 : 128;
  RotaryTable table(length, width, 10000.0, device);
  auto slice = table.first(length, device);
  auto x = at::ones({1, length, heads, width}, at::device(device).dtype(cpu ? at::kFloat : at::kBFloat16));
  auto flops = 2.0 * static_cast<double>(length * length * heads * width);  // half of two products
  return median_rate(world, flops, [&] {
    rotary_attention(x, x, x, slice);
    synchronize(device);
  });
}

/// Kernels so small that starting them is all there is; a backward starts them too, and keeps its graph.
double kernel_seconds(World& world) {
  constexpr int kChain = 20, kKernels = 3 * kChain;
  auto x = at::ones({8, 8}, at::device(world.device()).dtype(at::kFloat)).set_requires_grad(true);
  auto rate = median_rate(world, kKernels, [&] {
    auto y = x;
    for (int i = 0; i < kChain; ++i) y = at::mul(y, x);
    y.backward(at::ones_like(y));
    x.mutable_grad().reset();
    synchronize(world.device());
  });
  return 1.0 / rate;
}

double memory_of_a_rank(World& world) {
  if (!world.device().is_cpu()) {
    return static_cast<double>(at::accelerator::getMemoryInfo(world.device().index()).second);
  }
  std::ifstream file("/proc/meminfo");
  std::string word;
  double kilobytes = 0.0;
  while (file >> word && word != "MemTotal:") {
  }
  file >> kilobytes;
  return 1024.0 * kilobytes / world.place().local_size;
}

/// From the smallest and the largest measured all-gather: what no byte costs, and what each more does.
std::optional<Link> link_of(const PreflightReport& report, Axis axis) {
  const Bandwidth *small = nullptr, *large = nullptr;
  for (auto& each : report.bandwidths) {
    if (each.axis != axis || each.operation != "all_gather") continue;
    if (small == nullptr) small = &each;
    large = &each;
  }
  if (small == nullptr) return {};
  auto bytes = [](const Bandwidth& each) { return static_cast<double>((each.ranks - 1) * each.bytes); };
  auto begin = small->median_seconds;
  auto rate = bytes(*large) / large->median_seconds;
  if (large != small && large->median_seconds > begin) {
    rate = (bytes(*large) - bytes(*small)) / (large->median_seconds - begin);
  }
  return Link{three_digits(rate / 1e9), three_digits(begin / (small->ranks - 1) * 1e6)};
}

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Bytes a second that a rank's share of a core carries through one operation: never more than it took in all.
double core_rate(const Mesh& mesh, Axis axis, bool gathers, double crowding) {
  constexpr std::int64_t kElements = 1 << 20;
  constexpr int kRepetitions = 9;
  auto& communicator = mesh.axis(axis);
  auto full = at::ones({kElements * communicator.size()}, at::kFloat), shard = at::ones({kElements}, at::kFloat);
  std::vector<double> seconds;
  for (int i = 0; i < kRepetitions; ++i) {
    communicator.barrier();
    auto wall = steady_seconds(), cpu = cpu_seconds();
    CallInfo info{.unit = "preflight"};
    (gathers ? communicator.all_gather(full, shard, info)
             : communicator.reduce_scatter(shard, full, ReduceOp::Average, info))
        .wait();
    seconds.push_back(std::min(crowding * (cpu_seconds() - cpu), steady_seconds() - wall));
  }
  auto bytes = static_cast<double>(gather_bytes(4 * kElements * communicator.size(), communicator.size()));
  return bytes / max_over_ranks(mesh.world(), {median_of(seconds)})[0];
}

std::optional<CoreRates> core_rates(const Mesh& mesh, const PreflightReport& report) {
  auto& world = mesh.world();
  if (!world.device().is_cpu() || world.size() == 1) return {};
  auto& facts = report.ranks[world.rank()];
  auto cores = std::max<std::size_t>(1, facts.cores.size());
  auto crowding = std::max(1.0, facts.place.local_size / static_cast<double>(cores));
  auto axis = mesh.size(Axis::DpShard) > 1 ? Axis::DpShard : Axis::DpOuter;
  return CoreRates{three_digits(core_rate(mesh, axis, true, crowding) / 1e9),
                   three_digits(core_rate(mesh, axis, false, crowding) / 1e9)};
}

}  // namespace

MeshShape mesh_of_nodes(World& world) {
  std::vector<std::string> nodes;
  auto& places = world.places();
  auto together = places.front().local_size;
  for (auto& place : places) {
    bool first = place.local_rank == 0;
    if (first) nodes.push_back(place.host);
    auto rank = &place - places.data();
    if (place.host == nodes.back() && place.local_size == together && place.local_rank == rank % together) continue;
    throw ConfigError(
        fmt::format("rank {} is on {} as {} of {} there: a hardware file needs ranks that fill node "
                    "after node, equally many on each; use mpirun --map-by ppr:N:node",
                    rank, place.host, place.local_rank + 1, place.local_size));
  }
  auto count = static_cast<int>(nodes.size());
  return MeshShape(world.size(), count, world.size() / count);
}

Hardware measure_hardware(const Mesh& mesh, const PreflightReport& report) {
  auto& world = mesh.world();
  bool cpu = world.device().is_cpu();
  auto slowest = [&](double RankFacts::*rate) {
    return std::ranges::min(report.ranks, {}, [&](auto& facts) { return facts.*rate; }).*rate;
  };
  auto known = slowest(&RankFacts::gflops) * 1e9;  // of fp32 on a CPU, bf16 on a device
  auto other = least(world, product_flops(world, cpu ? at::kBFloat16 : at::kFloat));
  auto attention = least(world, attention_flops(world));
  Hardware hardware;
  hardware.name = report.ranks.front().place.host;
  hardware.ranks_per_node = report.ranks.front().place.local_size;
  hardware.fp32_tflops = three_digits((cpu ? known : other) / 1e12);
  hardware.bf16_tflops = three_digits((cpu ? other : known) / 1e12);
  hardware.peak_tflops.reset();
  hardware.attention_share = std::min(1.0, three_digits(attention / known));
  hardware.memory_gb_per_s = three_digits(slowest(&RankFacts::copy_gb_per_s));
  hardware.memory_gb = three_digits(least(world, memory_of_a_rank(world)) / 1e9);
  hardware.kernel_us = three_digits(1e6 / least(world, 1.0 / kernel_seconds(world)));
  hardware.collective_us = 0.0;  // of what a link's latency says
  hardware.node = link_of(report, Axis::DpShard);
  hardware.network = link_of(report, Axis::DpOuter);
  hardware.core = core_rates(mesh, report);
  return hardware;
}

}  // namespace meshard
