#include "mesh/preflight.h"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/number_ranges.h"
#include "mesh/placement_check.h"

using namespace meshard;
namespace tt = boost::test_tools;

namespace {

using Hosts = std::vector<std::string>;

/// "aabb" -> {"a", "a", "b", "b"}
Hosts hosts_of(const std::string& letters) {
  Hosts hosts;
  for (char letter : letters) hosts.emplace_back(1, letter);
  return hosts;
}

std::string warning(const std::string& letters, int dp_shard, int expert = 1) {
  auto ranks = static_cast<int>(letters.size());
  return placement_warning(hosts_of(letters), MeshShape(ranks, ranks / dp_shard, dp_shard, expert));
}

/// What mpirun does with `--map-by ppr:N:node`: node after node, N consecutive ranks each.
std::string mapped(int ranks, int per_node) {
  std::string letters;
  for (int rank = 0; rank < ranks; ++rank) letters += static_cast<char>('a' + rank / per_node);
  return letters;
}

/// N of the `ppr:N:node` that a warning advises.
int advised(const std::string& text) {
  auto at = text.find("ppr:");
  BOOST_REQUIRE(at != std::string::npos);
  return std::stoi(text.substr(at + 4));
}

bool says(const std::string& text, const std::string& part) {
  bool found = text.find(part) != std::string::npos;
  if (!found) BOOST_TEST_MESSAGE("missing `" << part << "` in: " << text);
  return found;
}

using Cores = std::vector<int>;
using Texts = std::vector<std::string>;

RankFacts rank_on(const std::string& host, double gflops, double copies) {
  RankFacts facts;
  facts.place = {.host = host, .local_rank = 0, .local_size = 1, .device = "cpu"};
  facts.cores = {0, 1};
  facts.node_cores = 2;
  facts.gflops = gflops;
  facts.copy_gb_per_s = copies;
  return facts;
}

}  // namespace

// Catches: a warning about a placement that is right, or that no mapping could mend.
BOOST_AUTO_TEST_CASE(axes_within_nodes_and_axes_larger_than_a_node_are_fine) {
  BOOST_TEST(warning("a", 1) == "");
  BOOST_TEST(warning("aaaa", 4, 4) == "");
  BOOST_TEST(warning("aaaabbbb", 4, 4) == "");
  BOOST_TEST(warning("aaaabbbb", 2, 1) == "");
  BOOST_TEST(warning("aaaabbbb", 8) == "");
  BOOST_TEST(warning("abab", 4) == "");
  BOOST_TEST(warning("abcd", 2, 2) == "");      // one rank a node
  BOOST_TEST(warning("aabbbbbb", 2, 2) == "");  // uneven, but no group is cut
  BOOST_TEST(warning("abababab", 1) == "");     // dp_outer alone may go over nodes
}

// Catches: round-robin placement (mpirun --map-by node) not noticed, told of the wrong axis, group or node, or with a
// mapping that does not mend it.
BOOST_AUTO_TEST_CASE(round_robin_placements_are_named_and_mended) {
  auto text = warning("abababab", 4);
  BOOST_TEST(text ==
             "dp_shard (size 4) spans nodes in 2 of 2 groups, as that of ranks 0-3 on a, b, although a node holds 4 "
             "ranks. Keep groups within nodes: mpirun -n 8 --map-by ppr:4:node on 2 nodes (srun: --ntasks-per-node=4 "
             "--distribution=block)");
  BOOST_TEST(says(warning("abab", 1, 2), "expert (size 2) spans nodes in 2 of 2 groups, as that of ranks 0-1 on a, b"));
  text = warning("abcabcabcabc", 4, 2);
  BOOST_TEST(says(text,
                  "dp_shard (size 4) spans nodes in 3 of 3 groups, as that of ranks 0-3 on a, b, c; expert (size "
                  "2) spans nodes in 6 of 6 groups, as that of ranks 0-1 on a, b"));
  for (auto letters : {"abababab", "abcabcabcabc", "abcdefabcdefabcdefabcdef", "abbaabba", "aaabbbab"}) {
    auto ranks = static_cast<int>(std::string(letters).size());
    for (int dp_shard : {1, 2, 4}) {
      for (int expert : {1, 2, 4}) {
        auto text = warning(letters, dp_shard, expert);
        if (text.empty()) continue;
        BOOST_TEST(warning(mapped(ranks, advised(text)), dp_shard, expert) == "");
        BOOST_TEST(advised(text) <= 4);
      }
    }
  }
  BOOST_TEST(advised(warning("abababababababab", 2, 4)) == 8);
  // Nodes of 9 ranks cut groups of 2, nodes of 8 groups of 3.
  BOOST_TEST(advised(warning("ababababababababab", 2, 3)) == 6);
}

// Catches: an expert axis over nodes that is not seen because dp_shard is fine.
BOOST_AUTO_TEST_CASE(an_expert_axis_over_nodes_is_named_alone) {
  auto text = warning("aabbaabb", 2, 4);
  BOOST_TEST(text.starts_with("expert (size 4) spans nodes in 2 of 2 groups, as that of ranks 0-3 on a, b, although"));
  BOOST_TEST(text.find("dp_shard") == std::string::npos);
  BOOST_TEST(advised(text) == 4);
}

// Catches: two axes that no mapping keeps within nodes at once, the second mended by cutting the first.
BOOST_AUTO_TEST_CASE(an_axis_that_cannot_be_mended_is_said_to_be_so) {
  const std::string cannot = "; nodes of 3 ranks cannot hold whole groups of it and of dp_shard";
  BOOST_TEST(warning("aaabbb", 3, 2) ==
             "expert (size 2) spans nodes in 1 of 3 groups, as that of ranks 2-3 on a, b" + cannot);
  auto text = warning("ababab", 3, 2);
  BOOST_TEST(text.starts_with("dp_shard (size 3) spans"));
  BOOST_TEST(advised(text) == 3);
  BOOST_TEST(text.ends_with(cannot));
}

// Catches: nodes of unequal size mended by a mapping that leaves a group cut, or that needs a node larger than any.
BOOST_AUTO_TEST_CASE(uneven_nodes_are_mended_where_they_can_be) {
  auto text = warning("aaabbbbb", 4);
  BOOST_TEST(says(text, "dp_shard (size 4) spans nodes in 1 of 2 groups, as that of ranks 0-3 on a, b"));
  BOOST_TEST(says(text, "ppr:4:node on 2 nodes"));
  BOOST_TEST(says(warning("aaaaaabbbbbb", 4), "ppr:4:node on 3 nodes"));
  BOOST_TEST(warning("aaabbbbbb", 3) == "");
  // 4 and 8 ranks, round robin first: both are multiples of 4 and may stay so.
  BOOST_TEST(
      says(warning("ababababbbbb", 4), "mpirun -n 12 --host a:4,b:8 --map-by slot (srun: --distribution=block)"));
}

// Catches: many nodes that make a line of pages.
BOOST_AUTO_TEST_CASE(a_group_over_many_nodes_is_short) {
  std::string letters;
  for (int i = 0; i < 8; ++i) letters += "abcdefgh";
  BOOST_TEST(says(warning(letters, 8), "as that of ranks 0-7 on a, b, c, d and 4 more, although a node holds 8 ranks"));
}

// Catches: hosts of another launch than the mesh.
BOOST_AUTO_TEST_CASE(hosts_and_mesh_must_be_of_one_launch) {
  BOOST_CHECK_THROW(placement_warning(hosts_of("aab"), MeshShape(4, 1, 4)), ArgumentError);
}

// Catches: ranks on too few cores that are not noticed; unbound or socket-bound ranks that are called wrong.
BOOST_AUTO_TEST_CASE(cores_are_shared_or_not) {
  auto count = [](std::vector<RankCores> ranks) { return core_warnings(ranks).size(); };
  const Cores all{0, 1, 2, 3};
  BOOST_TEST(count({{"a", {0}, 1}, {"a", {1}, 1}}) == 0);
  BOOST_TEST(count({{"a", all, 2}, {"a", all, 2}}) == 0);  // unbound, and they fit
  BOOST_TEST(count({{"a", {0, 1}, 1}, {"a", {0, 1}, 1}, {"a", {2, 3}, 1}, {"a", {2, 3}, 1}}) == 0);
  BOOST_TEST(count({{"a", {0}, 1}, {"b", {0}, 1}}) == 0);  // of other nodes
  auto text = core_warnings(std::vector<RankCores>{{"a", all, 2}, {"a", all, 2}, {"a", all, 1}, {"b", all, 1}});
  BOOST_TEST_REQUIRE(text.size() == 1);
  BOOST_TEST(text[0].starts_with("ranks 0-2 on a run 5 threads on cores 0-3: give each rank cores of its own"));
  text = core_warnings(std::vector<RankCores>{{"b", {7}, 8}});
  BOOST_TEST_REQUIRE(text.size() == 1);
  BOOST_TEST(text[0].starts_with("rank 0 on b runs 8 threads on core 7: "));
  // Two of them on one core of a mask that has room.
  text = core_warnings(std::vector<RankCores>{{"a", {2}, 1}, {"a", all, 1}, {"a", {2}, 1}});
  BOOST_TEST_REQUIRE(text.size() == 2);
  BOOST_TEST(text[0].starts_with("ranks 0,2 on a run 2 threads on core 2: "));
  BOOST_TEST(text[1].starts_with("ranks 0-2 on a are bound to cores that overlap: "));
  // No mask is too small, but the three together are.
  text = core_warnings(std::vector<RankCores>{{"a", {0, 1}, 2}, {"a", {1, 2}, 2}, {"a", {0, 2}, 2}});
  BOOST_TEST_REQUIRE(text.size() == 2);
  BOOST_TEST(text[0].starts_with("ranks 0-2 on a run 6 threads on cores 0-2: "));
}

// Catches: a slow node that is not named, a fast one that is, a threshold against the fastest or the mean.
BOOST_AUTO_TEST_CASE(slow_nodes_are_those_far_below_the_median) {
  auto slow = [](Hosts names, std::vector<double> rates) {
    Texts texts;
    for (auto& one : slow_ones(names, rates, 0.2))
      texts.push_back(fmt::format("{} {} of {}", one.name, one.rate, one.median));
    return texts;
  };
  BOOST_TEST(slow({"a"}, {1}) == Texts{}, tt::per_element());
  BOOST_TEST(slow({"a", "a", "a"}, {1, 50, 100}) == Texts{}, tt::per_element());
  BOOST_TEST(slow({"a", "b"}, {100, 79}) == Texts{"b 79 of 100"}, tt::per_element());
  BOOST_TEST(slow({"a", "b"}, {81, 100}) == Texts{}, tt::per_element());
  BOOST_TEST(slow({"a", "b", "c"}, {100, 70, 300}) == Texts{"b 70 of 100"}, tt::per_element());
  BOOST_TEST(slow({"d", "b", "c", "a"}, {10, 10, 7, 7}) == (Texts{"c 7 of 10", "a 7 of 10"}), tt::per_element());
  // By the median of a node's ranks: one of its three is slow, or two are.
  BOOST_TEST(slow({"a", "a", "a", "b", "b", "b"}, {10, 10, 10, 10, 1, 10}) == Texts{}, tt::per_element());
  BOOST_TEST(slow({"a", "b", "a", "b", "a", "b"}, {10, 1, 10, 1, 10, 10}) == Texts{"b 1 of 10"}, tt::per_element());
}

// Catches: a slow node whose number is not in the report's warnings, told of the wrong measure, or GPUs compared on
// CPUs.
BOOST_AUTO_TEST_CASE(warnings_name_the_slow_node_and_what_is_slow) {
  PreflightReport report;
  report.shape = MeshShape(3, 1, 3);
  report.ranks = {rank_on("n1", 40, 8), rank_on("n2", 30, 8), rank_on("n3", 41, 5)};
  BOOST_TEST(preflight_warnings(report) == (Texts{"node n2 computes slowly: 30.0 GFLOP/s a rank, the median is 40.0",
                                                  "node n3 copies memory slowly: 5.0 GB/s a rank, the median is 8.0"}),
             tt::per_element());
  report.ranks = {rank_on("n1", 40, 8), rank_on("n1", 40, 8), rank_on("n1", 20, 8)};
  BOOST_TEST(preflight_warnings(report).size() == 1);  // 3 threads on 2 cores
  report.backend = Backend::Nccl;
  for (auto& rank : report.ranks) rank.place.device = "cuda:2", rank.gpu = "0000:3b:00.0";
  BOOST_TEST(preflight_warnings(report).back() ==
             "rank 2 on n1, cuda:2 0000:3b:00.0 computes slowly: 20.0 GFLOP/s a rank, the median is 40.0");
}

// Catches: an axis measured twice, or one that is another left out.
BOOST_AUTO_TEST_CASE(each_set_of_groups_is_one_axis) {
  using Axes = std::vector<Axis>;
  BOOST_TEST((distinct_axes(MeshShape(1, 1, 1)) == Axes{}));
  BOOST_TEST((distinct_axes(MeshShape(4, 1, 4)) == Axes{Axis::DpShard}));
  BOOST_TEST((distinct_axes(MeshShape(4, 4, 1)) == Axes{Axis::DpOuter}));
  BOOST_TEST((distinct_axes(MeshShape(4, 2, 2, 2)) == Axes{Axis::DpOuter, Axis::DpShard, Axis::World}));
  BOOST_TEST((distinct_axes(MeshShape(8, 2, 4, 2)) ==
              Axes{Axis::DpOuter, Axis::DpShard, Axis::World, Axis::ExpertDp, Axis::Expert}));
}

// Catches: another formula than the ledger's and nccl-tests' bus bandwidth.
BOOST_AUTO_TEST_CASE(bandwidth_is_what_a_rank_sends) {
  Bandwidth measured{.ranks = 4, .bytes = 1'000'000, .median_seconds = 0.003};
  BOOST_TEST(measured.gb_per_s(measured.median_seconds) == 1.0, tt::tolerance(1e-12));
}

// Catches: tables that leave out a rank, a cut size or a warning; JSON without what the tables have.
BOOST_AUTO_TEST_CASE(the_report_reads_well) {
  PreflightReport report;
  report.shape = MeshShape(3, 1, 3);
  report.ranks = {rank_on("n1", 40, 8), rank_on("n1", 44, 6), rank_on("n2", 41, 7)};
  report.ranks[1].place.local_rank = 1;
  report.bandwidths = {{.axis = Axis::DpShard,
                        .ranks = 3,
                        .operation = "all_gather",
                        .wanted = 64 << 20,
                        .bytes = 1 << 20,
                        .repetitions = 9,
                        .median_seconds = 0.0205,
                        .min_seconds = 0.004}};
  report.warnings = {"something"};
  report.seconds = 9.96;
  BOOST_TEST(preflight_text(report) ==
             "preflight    3 ranks on 2 nodes, mpi; dp_outer 1 x dp_shard 3, expert_dp 3 x expert 1\n"
             "\n"
             "rank       node                 local   threads  cores                device\n"
             "0-1        n1                   0-1           1  0-1 of 2             cpu\n"
             "2          n2                   0             1  0-1 of 2             cpu\n"
             "\n"
             "node                 ranks  GFLOP/s a rank  copy GB/s a rank\n"
             "n1                       2            44.0              8.00\n"
             "n2                       1            41.0              7.00\n"
             "\n"
             "axis       ranks  operation          a rank     median      best     GB/s    best  repetitions\n"
             "dp_shard       3  all_gather         1 MiB*    20.5 ms    4.0 ms    0.102   0.524            9\n"
             "GB/s: (ranks - 1) x bytes a rank / time, 1e9 bytes\n"
             "*: cut to fit time and memory\n"
             "\n"
             "warning: something\n"
             "1 warning after 10.0 s");
  auto json = preflight_json(report);
  BOOST_TEST(json["places"].size() == 3);
  BOOST_TEST(json["places"][2]["rank"] == 2);
  BOOST_TEST(json["places"][1]["cores"] == (Cores{0, 1}));
  BOOST_TEST(json["places"][0]["gpu"].is_null());
  BOOST_TEST(json["nodes"][0]["ranks"] == 2);
  BOOST_TEST(json["bandwidths"][0]["bytes"] == 1 << 20);
  BOOST_TEST(json["bandwidths"][0]["best_gb_per_s"] == report.bandwidths[0].gb_per_s(0.004));
  BOOST_TEST(json["warnings"][0] == "something");
}

// Catches: cores listed one by one, or a gap that is closed.
BOOST_AUTO_TEST_CASE(numbers_in_a_row_are_a_range) {
  BOOST_TEST(number_ranges(Cores{}) == "");
  BOOST_TEST(number_ranges(Cores{3}) == "3");
  BOOST_TEST(number_ranges(Cores{0, 1, 2, 5, 8, 9}) == "0-2,5,8-9");
}
