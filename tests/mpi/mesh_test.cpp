#include "mesh/mesh.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <numeric>

#include "base/error.h"
#include "support/mpi_test.h"

using namespace meshard;

namespace {

std::vector<MeshShape> shapes_of(int ranks) {
  if (ranks == 4) return {{4, 2, 2, 2}, {4, 1, 4, 4}, {4, 4, 1}};
  return {{ranks, 1, ranks, ranks}, {ranks, ranks, 1}};
}
}  // namespace

// Catches: a communicator with other members than the arithmetic says, or in another order.
BOOST_AUTO_TEST_CASE(communicators_are_those_of_the_arithmetic) {
  auto& world = test_world();
  for (auto& shape : shapes_of(world.size())) {
    Mesh mesh(world, shape);
    for (auto [axis, name] : kAxes) {
      auto& communicator = mesh.axis(axis);
      BOOST_TEST(communicator.size() == shape.size(axis));
      BOOST_TEST(communicator.rank() == mesh.coordinate(axis));
      BOOST_TEST(communicator.axis() == axis_name(axis));
      BOOST_TEST(std::ranges::equal(communicator.members(), shape.members(axis, world.rank())));

      auto sum = at::full({1}, world.rank(), at::device(world.device()).dtype(at::kInt));
      communicator.all_reduce(sum, ReduceOp::Sum).wait();
      auto members = shape.members(axis, world.rank());
      BOOST_TEST(sum.item<int>() == std::accumulate(members.begin(), members.end(), 0));
    }
  }
}

// Catches: a mesh made for another number of ranks.
BOOST_AUTO_TEST_CASE(a_mesh_of_other_ranks_is_refused) {
  int ranks = test_world().size() + 1;
  BOOST_CHECK_THROW(Mesh(test_world(), MeshShape(ranks, 1, ranks)), ConfigError);
}

// Catches: ranks that run with different configs; an error that does not say which, or that only some ranks see.
BOOST_AUTO_TEST_CASE(different_configs_are_named) {
  auto& world = test_world();
  BOOST_CHECK_NO_THROW(check_same_config(world, "steps: 10"));
  auto config = world.rank() == world.size() - 1 ? "steps: 11" : "steps: 10";
  auto expected = "rank " + std::to_string(world.size() - 1) + " of " + std::to_string(world.size());
  BOOST_CHECK_EXCEPTION(check_same_config(world, config), ConfigError, [&](const ConfigError& error) {
    return std::string(error.what()).find(expected) != std::string::npos;
  });
}
