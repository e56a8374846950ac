#include "mesh/mesh_shape.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "base/error.h"

using namespace meshard;

namespace {

std::string message_of(int ranks, int dp_outer, int dp_shard, int expert) {
  try {
    MeshShape(ranks, dp_outer, dp_shard, expert);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}
}  // namespace

// Catches: outer and inner exchanged, or the world axis in rank order: flat buffers would be cut wrongly.
BOOST_AUTO_TEST_CASE(two_by_three_by_hand) {
  MeshShape mesh(6, 2, 3, 2);
  using Ranks = std::vector<int>;
  BOOST_TEST(mesh.members(Axis::DpShard, 4) == (Ranks{3, 4, 5}));
  BOOST_TEST(mesh.members(Axis::DpOuter, 4) == (Ranks{1, 4}));
  BOOST_TEST(mesh.members(Axis::World, 4) == (Ranks{0, 3, 1, 4, 2, 5}));
  BOOST_TEST(mesh.members(Axis::Expert, 4) == (Ranks{4, 5}));
  BOOST_TEST(mesh.members(Axis::ExpertDp, 4) == (Ranks{0, 2, 4}));
  BOOST_TEST(mesh.coordinate(Axis::World, 4) == 3);
  BOOST_TEST(mesh.expert_dp() == 3);
}

// Catches: a rank missing from or twice on an axis, a color shared by two groups.
BOOST_AUTO_TEST_CASE(every_axis_partitions_the_ranks) {
  for (auto [outer, inner, expert] : {std::array{1, 1, 1}, {1, 8, 4}, {4, 2, 8}, {2, 6, 3}, {3, 1, 1}, {64, 32, 64}}) {
    MeshShape mesh(outer * inner, outer, inner, expert);
    for (auto [axis, name] : kAxes) {
      for (int rank = 0; rank < mesh.ranks(); rank += std::max(1, mesh.ranks() / 50)) {
        auto members = mesh.members(axis, rank);
        BOOST_REQUIRE(static_cast<int>(members.size()) == mesh.size(axis));
        BOOST_REQUIRE(members[mesh.coordinate(axis, rank)] == rank);
        for (int i = 0; i < mesh.size(axis); ++i) {
          BOOST_REQUIRE(mesh.coordinate(axis, members[i]) == i);
          BOOST_REQUIRE(mesh.color(axis, members[i]) == mesh.color(axis, rank));
        }
      }
    }
  }
}

// Catches: a mesh that does not fit the launch and is not refused, or whose refusal does not name the numbers.
BOOST_AUTO_TEST_CASE(an_impossible_mesh_names_its_numbers) {
  BOOST_TEST(message_of(4, 2, 3, 1) == "mesh: dp_outer 2 x dp_shard 3 = 6 is not the 4 ranks of this run");
  BOOST_TEST(message_of(4, 2, 2, 3) == "mesh: expert 3 does not divide the 4 ranks of this run");
  BOOST_TEST(message_of(4, 0, 4, 1).find("at least 1") != std::string::npos);
  BOOST_TEST(message_of(4, 65536, 65537, 1).find("is not the 4 ranks") != std::string::npos);
}

// Catches: an out-of-range rank that silently gets a coordinate.
BOOST_AUTO_TEST_CASE(a_rank_outside_is_refused) {
  BOOST_CHECK_THROW(MeshShape(4, 2, 2).coordinate(Axis::World, 4), ArgumentError);
  BOOST_CHECK_THROW(MeshShape(4, 2, 2).members(Axis::DpShard, -1), ArgumentError);
}
