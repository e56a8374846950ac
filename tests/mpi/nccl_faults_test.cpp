#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "base/error.h"
#include "comm/nccl/support.h"
#include "sharding/storage.h"
#include "support/mpi_test.h"
#include "support/nccl_stub.h"

using namespace meshard;

namespace {

struct OneAxis {
  World& world = test_world();
  HostTimeline& timeline = nccl_stub::test_devices()->timeline();
  int n = world.size(), rank = world.rank();

  /// What the checker of order has found since.
  std::string found() const { return OrderChecker::active()->take_found(); }
  static bool names(const std::string& text, std::initializer_list<const char*> words) {
    return std::ranges::all_of(words, [&](auto* word) { return text.find(word) != std::string::npos; });
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(nccl_faults, OneAxis)

// Catches: an error of the checker where nothing is wrong.
BOOST_AUTO_TEST_CASE(work_that_is_waited_for_is_in_order) {
  auto axis = world.split(0, rank, "dp_shard");
  auto shard = at::full({5}, 1.0 * rank), full = at::zeros({5 * n});
  axis->all_gather(full, shard, {"layer 0"}).wait();
  BOOST_TEST(!at::isnan(full).any().item<bool>());
  axis->reduce_scatter(shard, full, ReduceOp::Sum).wait();
  shard.add_(1);
  BOOST_TEST(found() == "");
}

// Catches: a use of gathered parameters that does not wait for them: the lanes run late and the values are spoiled.
BOOST_AUTO_TEST_CASE(a_dropped_wait_shows_as_nan_and_is_named) {
  auto axis = world.split(0, rank, "dp_shard");
  auto shard = at::full({5}, 1.0 * rank), full = at::zeros({5 * n});
  timeline.drop_next_wait(Lane::Compute, Lane::Gather);
  axis->all_gather(full, shard, {"layer 0"}).wait();
  BOOST_TEST(at::isnan(full).all().item<bool>());
  auto text = found();
  BOOST_TEST(names(text, {"aten::isnan", "all_gather on axis dp_shard of layer 0 (lane gather)", "lane compute"}),
             text);
  axis->all_gather(full, shard).wait();
  BOOST_TEST(found() == "");
}

// Catches: a reduction that may start before the gradients are there.
BOOST_AUTO_TEST_CASE(a_dropped_ready_edge_is_named) {
  auto axis = world.split(0, rank, "dp_shard");
  auto full = at::zeros({5 * n}), shard = at::zeros({5});
  full.add_(1);
  timeline.drop_next_wait(Lane::Reduce, Lane::Compute);
  BOOST_CHECK_THROW(axis->reduce_scatter(shard, full, ReduceOp::Sum, {"layer 1"}).wait(), LogicError);
  auto text = found();
  BOOST_TEST(names(text, {"reduce_scatter on axis dp_shard of layer 1 (lane reduce)", "aten::add_"}), text);
}

// Catches: memory that goes back to the pool while a collective still reads it.
BOOST_AUTO_TEST_CASE(a_block_given_back_too_early_is_named) {
  auto axis = world.split(0, rank, "dp_shard");
  BufferPool pool(at::kCPU);
  auto block = pool.acquire(20 * n);
  auto full = block.view(at::kFloat).narrow(0, 0, 5 * n), shard = at::zeros({5});
  full.fill_(1);
  auto work = axis->reduce_scatter(shard, full, ReduceOp::Sum, {"layer 2"});
  pool.give_back(block);
  auto text = found();
  BOOST_TEST(names(text, {"given back", "reduce_scatter on axis dp_shard of layer 2"}), text);
  work.wait();
}

// Catches: a start that waits for ever for a rank that does not come, an error without its axis.
BOOST_AUTO_TEST_CASE(an_init_that_never_ends_is_an_error) {
  nccl_stub::faults().init_never_ends = true;
  try {
    NcclComm comm(MPI_COMM_WORLD, "dp_shard", std::chrono::milliseconds(300));
    BOOST_ERROR("it came up");
  } catch (const CommError& error) {
    BOOST_TEST(names(error.what(), {"ncclCommInitRankConfig", "dp_shard", "not done after"}), error.what());
  }
  nccl_stub::faults().init_never_ends = false;
}

// Catches: a communicator that has failed and is waited for until the watchdog ends the run, or used again.
BOOST_AUTO_TEST_CASE(an_error_on_the_way_aborts_and_is_thrown_at_the_next_use) {
  auto axis = world.split(0, rank, "dp_shard");
  auto tensor = at::zeros({3});
  nccl_stub::faults().launches_until_error = 0;
  axis->all_reduce(tensor, ReduceOp::Sum).wait();  // ends when the watchdog's probe has aborted it
  try {
    axis->all_reduce(tensor, ReduceOp::Sum).wait();
    BOOST_ERROR("it went on");
  } catch (const CommError& error) {
    BOOST_TEST(names(error.what(), {"ncclAllReduce", "dp_shard", "remote process exited"}), error.what());
  }
}

// Catches: two ranks that launch in different orders over different communicators: a deadlock on devices. The last
// case: nothing can be launched after it.
BOOST_AUTO_TEST_CASE(another_order_on_one_rank_is_named) {
  auto inner = world.split(0, rank, "dp_shard"), outer = world.split(0, rank, "dp_outer");
  auto a = at::zeros({4}), b = at::zeros({6});
  std::vector<Work> works;
  try {
    if (rank == 0) works.push_back(inner->all_reduce(a, ReduceOp::Sum));
    works.push_back(outer->all_reduce(b, ReduceOp::Sum));
    if (rank != 0) works.push_back(inner->all_reduce(a, ReduceOp::Sum));
    for (auto& work : works) work.wait();
    BOOST_ERROR("nothing was found");
  } catch (const CommError& error) {
    auto zero = "rank 0 launches ncclAllReduce on dp_shard of 4 x Float";
    auto one = "rank 1 launches ncclAllReduce on dp_outer of 6 x Float";
    BOOST_TEST(names(error.what(), {zero, one}), error.what());
  }
}

BOOST_AUTO_TEST_SUITE_END()
