#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/number_ranges.h"
#include "mesh/mesh_text.h"
#include "mesh/placement_check.h"
#include "mesh/preflight.h"

namespace meshard {

namespace {

using Json = nlohmann::ordered_json;

const char* backend_name(Backend backend) {
  switch (backend) {
    case Backend::Auto:
      return "auto";
    case Backend::Mpi:
      return "mpi";
    case Backend::Nccl:
      return "nccl";
  }
  throw LogicError("unknown backend");
}

std::string size_text(std::int64_t bytes) {
  for (auto [unit, name] : {std::pair{1LL << 30, "GiB"}, {1LL << 20, "MiB"}, {1LL << 10, "KiB"}}) {
    if (bytes % unit == 0) return fmt::format("{} {}", bytes / unit, name);
  }
  return fmt::format("{} B", bytes);
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  return seconds < 1.0 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.1f} s", seconds);
}

bool alike(const RankFacts& a, const RankFacts& b) {
  return a.place.host == b.place.host && a.cores == b.cores && a.threads == b.threads && a.gpu == b.gpu;
}

std::string range_text(int first, int last) {
  return first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
}

/// A line for each rank, or for several in a row that are alike.
std::string map_table(const std::vector<RankFacts>& ranks) {
  auto row = [](auto rank, auto node, auto local, auto threads, auto cores, auto device) {
    return fmt::format("{:<10} {:<20} {:<7} {:>7}  {:<20} {}\n", rank, node, local, threads, cores, device);
  };
  auto text = row("rank", "node", "local", "threads", "cores", "device");
  for (std::size_t first = 0; first < ranks.size();) {
    auto last = first;
    while (last + 1 < ranks.size() && alike(ranks[last + 1], ranks[first])) ++last;
    auto& facts = ranks[first];
    text += row(range_text(static_cast<int>(first), static_cast<int>(last)), facts.place.host,
                range_text(facts.place.local_rank, ranks[last].place.local_rank), facts.threads,
                fmt::format("{} of {}", number_ranges(facts.cores), facts.node_cores),
                facts.place.device + (facts.gpu.empty() ? "" : " " + facts.gpu));
    first = last + 1;
  }
  return text;
}

struct NodeSpeed {
  std::string node;
  int ranks = 0;
  double gflops = 0.0, copy_gb_per_s = 0.0;  ///< medians over its ranks
};

std::vector<NodeSpeed> node_speeds(const std::vector<RankFacts>& ranks) {
  std::vector<std::string> order;
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> rates;
  for (auto& facts : ranks) {
    if (!rates.contains(facts.place.host)) order.push_back(facts.place.host);
    rates[facts.place.host].first.push_back(facts.gflops);
    rates[facts.place.host].second.push_back(facts.copy_gb_per_s);
  }
  std::vector<NodeSpeed> nodes;
  for (auto& node : order) {
    auto& [gflops, copies] = rates[node];
    nodes.push_back({node, static_cast<int>(gflops.size()), median_of(gflops), median_of(copies)});
  }
  return nodes;
}

std::string node_table(const std::vector<RankFacts>& ranks) {
  auto text = fmt::format("{:<20} {:>5}  {:>14}  {:>16}\n", "node", "ranks", "GFLOP/s a rank", "copy GB/s a rank");
  for (auto& [node, count, gflops, copies] : node_speeds(ranks)) {
    text += fmt::format("{:<20} {:>5}  {:>14.1f}  {:>16.2f}\n", node, count, gflops, copies);
  }
  return text;
}

std::string bandwidth_table(const std::vector<Bandwidth>& bandwidths) {
  if (bandwidths.empty()) return "one rank: no axis to measure\n";
  auto text = fmt::format("{:<10} {:>5}  {:<14} {:>10}  {:>9} {:>9}  {:>7} {:>7}  {:>11}\n", "axis", "ranks",
                          "operation", "a rank", "median", "best", "GB/s", "best", "repetitions");
  for (auto& each : bandwidths) {
    auto size = size_text(each.bytes) + (each.bytes < each.wanted ? "*" : "");
    text += fmt::format("{:<10} {:>5}  {:<14} {:>10}  {:>9} {:>9}  {:>7.3f} {:>7.3f}  {:>11}\n", axis_name(each.axis),
                        each.ranks, each.operation, size, time_text(each.median_seconds), time_text(each.min_seconds),
                        each.gb_per_s(each.median_seconds), each.gb_per_s(each.min_seconds), each.repetitions);
  }
  text += "GB/s: (ranks - 1) x bytes a rank / time, 1e9 bytes\n";
  bool cut = std::ranges::any_of(bandwidths, [](auto& each) { return each.bytes < each.wanted; });
  return cut ? text + "*: cut to fit time and memory\n" : text;
}

}  // namespace

std::string preflight_text(const PreflightReport& report) {
  auto& shape = report.shape;
  auto nodes = node_speeds(report.ranks).size();
  auto text =
      fmt::format("preflight    {} rank{} on {} node{}, {}; {}, {}",
                  shape.ranks(), shape.ranks() == 1 ? "" : "s", nodes, nodes == 1 ? "" : "s",
                  backend_name(report.backend), dense_text(shape), expert_text(shape));
  text +=
      "\n\n" + map_table(report.ranks) + "\n" + node_table(report.ranks) + "\n" + bandwidth_table(report.bandwidths);
  text += "\n";
  for (auto& warning : report.warnings) text += "warning: " + warning + "\n";
  return text + fmt::format("{} warning{} after {:.1f} s", report.warnings.size(),
                            report.warnings.size() == 1 ? "" : "s", report.seconds);
}

Json preflight_json(const PreflightReport& report) {
  auto places = Json::array(), nodes = Json::array(), bandwidths = Json::array();
  for (auto& facts : report.ranks) {
    places.push_back({{"rank", places.size()},
                      {"host", facts.place.host},
                      {"local_rank", facts.place.local_rank},
                      {"cores", facts.cores},
                      {"node_cores", facts.node_cores},
                      {"threads", facts.threads},
                      {"device", facts.place.device},
                      {"gpu", facts.gpu.empty() ? Json() : Json(facts.gpu)},
                      {"gflops", facts.gflops},
                      {"copy_gb_per_s", facts.copy_gb_per_s}});
  }
  for (auto& [node, ranks, gflops, copies] : node_speeds(report.ranks)) {
    nodes.push_back({{"host", node}, {"ranks", ranks}, {"gflops", gflops}, {"copy_gb_per_s", copies}});
  }
  for (auto& each : report.bandwidths) {
    bandwidths.push_back({{"axis", axis_name(each.axis)},
                          {"ranks", each.ranks},
                          {"operation", each.operation},
                          {"wanted_bytes", each.wanted},
                          {"bytes", each.bytes},
                          {"repetitions", each.repetitions},
                          {"median_seconds", each.median_seconds},
                          {"min_seconds", each.min_seconds},
                          {"gb_per_s", each.gb_per_s(each.median_seconds)},
                          {"best_gb_per_s", each.gb_per_s(each.min_seconds)}});
  }
  return {{"ranks", report.shape.ranks()},   {"backend", backend_name(report.backend)},
          {"mesh", mesh_json(report.shape)}, {"places", std::move(places)},
          {"nodes", std::move(nodes)},       {"bandwidths", std::move(bandwidths)},
          {"warnings", report.warnings},     {"seconds", report.seconds}};
}

}  // namespace meshard
