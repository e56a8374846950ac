#include "mesh/preflight.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/cores.h"
#include "base/json_text.h"
#include "comm/ledger.h"
#include "comm/nccl/device_backend.h"
#include "mesh/placement_check.h"

namespace meshard {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kSlow = 0.2;
constexpr double kSpeedSeconds = 0.5, kBurstSeconds = 0.02;

/// Free memory of the node, 0 if it does not say.
std::int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  for (std::int64_t kilobytes = 0; file >> word;) {
    if (word == "MemAvailable:" && file >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

RankFacts facts_of_this_rank(World& world, const PreflightOptions& options) {
  RankFacts facts{.place = world.place(), .cores = allowed_cores()};
  facts.node_cores = static_cast<int>(std::thread::hardware_concurrency());
  facts.threads = options.threads > 0 ? options.threads : cores_per_rank(facts.place.local_size);
  if (!world.device().is_cpu()) facts.gpu = built_in_devices().visible().at(world.device().index());
  return facts;
}

void measure_speed(World& world, std::int64_t most_bytes, RankFacts& facts) {
  auto device = world.device();
  auto options = at::device(device).dtype(device.is_cpu() ? at::kFloat : at::kBFloat16);
  std::int64_t n = device.is_cpu() ? 512 : 4096;
  auto a = at::ones({n, n}, options), b = at::ones({n, n}, options), c = at::ones({n, n}, options);
  facts.gflops = median_rate(world, 2.0 * static_cast<double>(n * n * n) / 1e9, [&] {
    at::mm_out(c, a, b);
    synchronize(device);
  });
  auto bytes = std::min<std::int64_t>(device.is_cpu() ? 64 << 20 : 256 << 20, most_bytes / 2);
  auto from = at::ones({bytes}, options.dtype(at::kByte)), to = at::ones({bytes}, options.dtype(at::kByte));
  facts.copy_gb_per_s = median_rate(world, 2.0 * static_cast<double>(bytes) / 1e9, [&] {
    to.copy_(from);
    synchronize(device);
  });
}

std::vector<RankFacts> gather_facts(World& world, const RankFacts& mine) {
  Json told{mine.cores, mine.node_cores, mine.threads, mine.gpu, mine.gflops, mine.copy_gb_per_s};
  std::vector<RankFacts> all;
  for (auto& text : world.gather_texts(json_text(told))) {
    auto said = read_json<Json>(text, fmt::format("what rank {} told", all.size()));
    RankFacts facts{.place = world.places()[all.size()]};
    said[0].get_to(facts.cores);
    said[1].get_to(facts.node_cores);
    said[2].get_to(facts.threads);
    said[3].get_to(facts.gpu);
    said[4].get_to(facts.gflops);
    said[5].get_to(facts.copy_gb_per_s);
    all.push_back(std::move(facts));
  }
  return all;
}

/// Nodes by their median rank; of GPUs, which share nothing, each one too.
void add_slow(const PreflightReport& report, double RankFacts::*rate, const char* what, const char* unit,
              std::vector<std::string>& warnings) {
  std::vector<std::string> nodes, gpus;
  std::vector<double> rates;
  for (std::size_t rank = 0; rank < report.ranks.size(); ++rank) {
    auto& facts = report.ranks[rank];
    nodes.push_back("node " + facts.place.host);
    gpus.push_back(fmt::format("rank {} on {}, {} {}", rank, facts.place.host, facts.place.device, facts.gpu));
    rates.push_back(facts.*rate);
  }
  auto slow = slow_ones(nodes, rates, kSlow);
  if (report.backend == Backend::Nccl) {
    for (auto& one : slow_ones(gpus, rates, kSlow)) slow.push_back(one);
  }
  for (auto& [name, own, median] : slow) {
    warnings.push_back(
        fmt::format("{} {} slowly: {:.1f} {} a rank, the median is {:.1f}", name, what, own, unit, median));
  }
}

}  // namespace

double median_rate(World& world, double work, const std::function<void()>& call) {
  call();
  world.control().barrier();
  std::vector<double> rates;
  for (auto end = steady_seconds() + kSpeedSeconds; steady_seconds() < end;) {
    auto start = steady_seconds();
    int calls = 0;
    for (; calls == 0 || steady_seconds() < start + kBurstSeconds; ++calls) call();
    rates.push_back(calls * work / (steady_seconds() - start));
  }
  return median_of(rates);
}

PreflightReport preflight(const Mesh& mesh, const PreflightOptions& options) {
  auto start = steady_seconds();
  auto& world = mesh.world();
  PreflightReport report{.shape = mesh.shape(), .backend = world.backend()};
  auto mine = facts_of_this_rank(world, options);
  at::set_num_threads(mine.threads);
  auto most_bytes = options.most_bytes;
  if (auto free = available_bytes()) most_bytes = std::min(most_bytes, free / mine.place.local_size / 4);
  measure_speed(world, most_bytes, mine);
  report.ranks = gather_facts(world, mine);
  report.bandwidths =
      measure_bandwidth(mesh, {.sizes = options.sizes, .seconds = options.seconds, .most_bytes = most_bytes});
  report.warnings = preflight_warnings(report);
  report.seconds = max_over_ranks(world, {steady_seconds() - start})[0];
  return report;
}

std::vector<std::string> preflight_warnings(const PreflightReport& report) {
  std::vector<std::string> hosts;
  std::vector<RankCores> cores;
  for (auto& facts : report.ranks) {
    hosts.push_back(facts.place.host);
    cores.push_back({facts.place.host, facts.cores, facts.threads});
  }
  std::vector<std::string> warnings;
  if (auto text = placement_warning(hosts, report.shape); !text.empty()) warnings.push_back(text);
  for (auto& text : core_warnings(cores)) warnings.push_back(text);
  add_slow(report, &RankFacts::gflops, "computes", "GFLOP/s", warnings);
  add_slow(report, &RankFacts::copy_gb_per_s, "copies memory", "GB/s", warnings);
  return warnings;
}

}  // namespace meshard
