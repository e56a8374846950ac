#include "mesh/preflight.h"

#include <ATen/Parallel.h>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "support/mpi_test.h"

using namespace meshard;

namespace {

MeshShape shape_of(int ranks) {
  return ranks == 4 ? MeshShape(4, 2, 2, 4) : MeshShape(ranks, 1, ranks);
}

struct ThreadsRestored {
  int threads = at::get_num_threads();
  ~ThreadsRestored() { at::set_num_threads(threads); }
};

std::vector<std::int64_t> sizes_of(const PreflightReport& report) {
  std::vector<std::int64_t> sizes;
  for (auto& each : report.bandwidths) sizes.push_back(each.bytes);
  return sizes;
}

}  // namespace

// Catches: an axis, an operation or a size that is not measured, times that cannot be, ranks that report differently.
BOOST_FIXTURE_TEST_CASE(every_axis_is_measured_and_all_ranks_agree, ThreadsRestored) {
  auto& world = test_world();
  Mesh mesh(world, shape_of(world.size()));
  auto report = preflight(mesh, {.sizes = {4 << 10, 64 << 10}, .seconds = 2.0, .threads = 1});
  auto axes = distinct_axes(mesh.shape());
  BOOST_TEST(axes.size() == (world.size() == 4 ? 3 : 0));
  BOOST_TEST_REQUIRE(report.bandwidths.size() == axes.size() * 2 * 2);
  std::size_t next = 0;
  for (auto axis : axes) {
    for (std::string operation : {"all_gather", "reduce_scatter"}) {
      for (std::int64_t bytes : {4 << 10, 64 << 10}) {
        auto& each = report.bandwidths[next++];
        BOOST_TEST((each.axis == axis && each.operation == operation && each.bytes == bytes));
        BOOST_TEST(each.ranks == mesh.size(axis));
        BOOST_TEST(each.min_seconds > 0.0);
        BOOST_TEST(each.min_seconds <= each.median_seconds);
        BOOST_TEST(each.repetitions >= 1);
      }
    }
  }
  BOOST_TEST_REQUIRE(report.ranks.size() == static_cast<std::size_t>(world.size()));
  for (auto& facts : report.ranks) {
    BOOST_TEST(facts.threads == 1);
    BOOST_TEST(!facts.cores.empty());
    BOOST_TEST(facts.gflops > 0.0);
    BOOST_TEST(facts.copy_gb_per_s > 0.0);
    BOOST_TEST(facts.gpu.empty() == (world.backend() == Backend::Mpi));
  }
  for (auto& text : world.gather_texts(preflight_json(report).dump()))
    BOOST_TEST(text == preflight_json(report).dump());
}

// Catches: buffers larger than allowed, a size that is measured twice, the smallest rank's limit not everybody's.
BOOST_FIXTURE_TEST_CASE(sizes_are_cut_to_fit_the_memory_of_the_poorest_rank, ThreadsRestored) {
  auto& world = test_world();
  Mesh mesh(world, MeshShape(world.size(), 1, world.size()));
  std::int64_t most = world.rank() == 0 ? 100 << 10 : 1 << 30;
  auto sizes = sizes_of(preflight(mesh, {.sizes = {4 << 10, 1 << 20, 8 << 20}, .seconds = 2.0, .most_bytes = most}));
  // 100 KiB hold a shard and what 4 of them make if it is no larger than 20 KiB.
  std::vector<std::int64_t> expected{4 << 10, 16 << 10, 4 << 10, 16 << 10};
  if (world.size() == 1) expected.clear();
  BOOST_TEST(sizes == expected, boost::test_tools::per_element());
}

// Catches: a slow network that makes a preflight last for minutes.
BOOST_FIXTURE_TEST_CASE(sizes_are_cut_to_fit_the_time, ThreadsRestored) {
  auto& world = test_world();
  Mesh mesh(world, MeshShape(world.size(), 1, world.size()));
  auto report = preflight(mesh, {.sizes = {64 << 20}, .seconds = 1e-4, .threads = 1});
  BOOST_TEST(report.bandwidths.size() == (world.size() == 4 ? 2 : 0));
  for (auto& each : report.bandwidths) {
    BOOST_TEST(each.wanted == 64 << 20);
    BOOST_TEST(each.bytes <= 16 << 20);
  }
}
