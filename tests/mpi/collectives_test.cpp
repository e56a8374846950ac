#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "support/mpi_test.h"

using namespace meshard;

namespace {

// Each test on a small axis and, to cut messages often, on one whose messages are at most 1000 bytes long.
struct AllRanks {
  World& world = test_world();
  std::unique_ptr<Communicator> plain = world.split(0, world.rank(), "dp_shard");
  std::unique_ptr<Communicator> pieces = world.split(0, world.rank(), "dp_outer", 1000);
  int n = world.size(), rank = world.rank();
  std::vector<Communicator*> both{plain.get(), pieces.get()};

  at::TensorOptions options(at::ScalarType dtype = at::kFloat) const { return at::device(world.device()).dtype(dtype); }

  /// The same random data of every rank on every rank, without communication.
  at::Tensor of_rank(int other, std::int64_t size, at::ScalarType dtype) const {
    auto generator = at::globalContext().defaultGenerator(at::kCPU).clone();
    generator.set_current_seed(17 + other);
    auto values = at::isFloatingType(dtype) ? at::randn({size}, generator, at::kFloat)
                                            : at::randint(0, 100, {size}, generator, at::kLong);
    return values.to(options(dtype));
  }

  /// Everyone's copy of `tensor` is bit for bit that of rank 0.
  bool same_everywhere(const at::Tensor& tensor) const {
    auto first = tensor.clone();
    plain->broadcast(first, 0).wait();
    return at::equal(first, tensor);
  }
};

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kDouble, at::kInt, at::kLong, at::kByte};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(collectives, AllRanks)

// Catches: shards in a wrong order, an in-place gather that loses this rank's slice.
BOOST_AUTO_TEST_CASE(all_gather_concatenates_in_rank_order) {
  for (auto axis : both) {
    for (auto dtype : kDtypes) {
      auto shard = at::full({3}, rank + 1, options(dtype));
      auto full = at::zeros({3 * n}, options(dtype)), in_place = full.clone();
      axis->all_gather(full, shard).wait();
      in_place.narrow(0, 3 * rank, 3).fill_(rank + 1);
      axis->all_gather(in_place, in_place.narrow(0, 3 * rank, 3)).wait();

      auto expected = at::arange(1, n + 1, options(dtype)).repeat_interleave(3);
      BOOST_TEST(at::equal(full, expected));
      BOOST_TEST(at::equal(in_place, expected));
    }
  }
}

// Catches: a slice summed for the wrong rank, an average that divides twice or after rounding.
BOOST_AUTO_TEST_CASE(reduce_scatter_of_small_integers) {
  for (auto axis : both) {
    for (auto dtype : kDtypes) {
      // Rank r gives slice i the value (r + 1) * (i + 1): the sum for slice i is n (n + 1) / 2 * (i + 1).
      auto full = at::arange(1, n + 1, options(dtype)).repeat_interleave(5) * (rank + 1);
      auto shard = at::empty({5}, options(dtype));
      axis->reduce_scatter(shard, full, ReduceOp::Sum).wait();
      BOOST_TEST(at::equal(shard, at::full({5}, n * (n + 1) / 2 * (rank + 1), options(dtype))));
      axis->reduce_scatter(shard, full, ReduceOp::Max).wait();
      BOOST_TEST(at::equal(shard, at::full({5}, n * (rank + 1), options(dtype))));
      if (!at::isFloatingType(dtype)) continue;
      axis->reduce_scatter(shard, full, ReduceOp::Average).wait();
      BOOST_TEST(at::equal(shard, at::full({5}, (n + 1) / 2.0 * (rank + 1), options(dtype))));
    }
  }
}

// Catches: sums in arrival order, bf16 rounded between additions, chunks of a long slice folded twice or not at all.
BOOST_AUTO_TEST_CASE(sums_are_those_of_rank_order_in_fp32) {
  if (world.backend() == Backend::Nccl) return;
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong}) {
    for (std::int64_t k : {1, 1000, 400'007}) {
      auto wide = dtype == at::kBFloat16 ? at::kFloat : dtype;
      auto expected = of_rank(0, k * n, dtype).to(wide);
      for (int other = 1; other < n; ++other) expected = expected + of_rank(other, k * n, dtype).to(wide);
      expected = expected.to(dtype);

      auto full = of_rank(rank, k * n, dtype);
      auto shard = at::empty({k}, options(dtype));
      plain->reduce_scatter(shard, full, ReduceOp::Sum).wait();
      BOOST_TEST(at::equal(shard, expected.narrow(0, k * rank, k)));

      plain->reduce_scatter(full.narrow(0, k * rank, k), full, ReduceOp::Sum).wait();
      BOOST_TEST(at::equal(full.narrow(0, k * rank, k), expected.narrow(0, k * rank, k)));

      auto reduced = of_rank(rank, k * n, dtype);
      plain->all_reduce(reduced, ReduceOp::Sum).wait();
      BOOST_TEST(at::equal(reduced, expected));
    }
  }
}

// Catches: an all-reduce whose size is no multiple of the ranks, ranks that end with different bits.
BOOST_AUTO_TEST_CASE(all_reduce_of_any_size_is_the_same_everywhere) {
  for (auto axis : both) {
    for (std::int64_t size : {0, 1, 2, 3, 7, 1001, 70'001}) {
      auto sum = of_rank(rank, size, at::kFloat), repeat = sum.clone(), maximum = sum.clone(), average = sum.clone();
      axis->all_reduce(sum, ReduceOp::Sum).wait();
      axis->all_reduce(repeat, ReduceOp::Sum).wait();
      axis->all_reduce(maximum, ReduceOp::Max).wait();
      axis->all_reduce(average, ReduceOp::Average).wait();
      BOOST_TEST(at::equal(sum, repeat));
      BOOST_TEST(same_everywhere(sum));
      BOOST_TEST(at::equal(average, sum / n));
      auto expected = of_rank(0, size, at::kFloat);
      for (int other = 1; other < n; ++other) expected = expected.maximum(of_rank(other, size, at::kFloat));
      BOOST_TEST(at::equal(maximum, expected));
    }
  }
}

// Catches: a Max that drops the NaN of one rank: a non-finite check would pass.
BOOST_AUTO_TEST_CASE(the_maximum_with_a_nan_is_nan) {
  if (world.backend() == Backend::Nccl) return;
  for (int culprit = 0; culprit < n; ++culprit) {
    auto value = at::full({1}, rank == culprit ? std::nan("") : 1.0, options());
    plain->all_reduce(value, ReduceOp::Max).wait();
    BOOST_TEST(std::isnan(value.item<float>()));
  }
}

// Catches: integer counts that travel through float.
BOOST_AUTO_TEST_CASE(large_integers_survive) {
  auto value = at::full({1}, (std::int64_t{1} << 60) + rank, options(at::kLong));
  plain->all_reduce(value, ReduceOp::Max).wait();
  BOOST_TEST(value.item<std::int64_t>() == (std::int64_t{1} << 60) + n - 1);
}

// Catches: a broadcast from the wrong rank.
BOOST_AUTO_TEST_CASE(broadcast_from_every_rank) {
  for (auto axis : both) {
    for (int root = 0; root < n; ++root) {
      auto tensor = at::full({101}, rank, options());
      axis->broadcast(tensor, root).wait();
      BOOST_TEST(at::equal(tensor, at::full({101}, root, options())));
    }
  }
}

// Catches: an all-to-all that transposes nothing, or keeps this rank's slice in the wrong place.
BOOST_AUTO_TEST_CASE(all_to_all_transposes) {
  for (auto axis : both) {
    auto in = at::arange(n, options(at::kInt)) + 10 * rank;
    auto out = at::empty({n}, options(at::kInt));
    axis->all_to_all(out, in).wait();
    BOOST_TEST(at::equal(out, at::arange(n, options(at::kInt)) * 10 + rank));
  }
}

// Catches: uneven or empty rows that land in the wrong place.
BOOST_AUTO_TEST_CASE(all_to_all_v_moves_uneven_rows) {
  for (auto axis : both) {
    // Rank r sends (r + i) % 3 rows to rank i, each [100 r + i, 100 r + i].
    std::vector<std::int64_t> out_rows(n), in_rows(n);
    std::vector<at::Tensor> in_parts, expected_parts;
    for (int other = 0; other < n; ++other) {
      in_rows[other] = out_rows[other] = (rank + other) % 3;
      in_parts.push_back(at::full({in_rows[other], 2}, 100 * rank + other, options()));
      expected_parts.push_back(at::full({out_rows[other], 2}, 100 * other + rank, options()));
    }
    auto in = at::cat(in_parts), expected = at::cat(expected_parts);
    auto out = at::empty_like(expected);
    axis->all_to_all_v(out, in, out_rows, in_rows).wait();
    BOOST_TEST(at::equal(out, expected));
  }
}

// Catches: operations in flight together that take each other's messages; waits in another order that dead-lock.
BOOST_AUTO_TEST_CASE(works_may_be_waited_for_in_any_order) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::int64_t k = 50'000;
    auto reduced = at::full({k}, rank + 1.0, options()), gathered = at::zeros({n * k}, options());
    auto scattered = at::empty({k}, options()), all_ones = at::full({n * k}, 1.0, options());
    Work works[] = {plain->all_reduce(reduced, ReduceOp::Sum),
                    pieces->reduce_scatter(scattered, all_ones, ReduceOp::Sum),
                    plain->all_gather(gathered, at::full({k}, rank, options()))};
    for (int i = 0; i < 3; ++i) works[(rank + i) % 3].wait();
    BOOST_TEST(at::equal(reduced, at::full({k}, n * (n + 1) / 2, options())));
    BOOST_TEST(at::equal(scattered, at::full({k}, n, options())));
    BOOST_TEST(at::equal(gathered, at::arange(n, options()).repeat_interleave(k)));
  }
}

// Catches: a Work whose tensors die with the caller's handles; one that is dropped and leaves its peers alone.
BOOST_AUTO_TEST_CASE(a_dropped_work_completes) {
  auto full = at::zeros({n}, options());
  { auto work = plain->all_gather(full, at::full({1}, rank, options())); }
  BOOST_TEST(at::equal(full, at::arange(n, options())));
}

// Catches: counts or bytes that differ from the formulas; control traffic in the step's ledger; an axis of one rank
// with an entry.
BOOST_AUTO_TEST_CASE(the_ledger_counts_by_the_formulas) {
  auto alone = world.split(rank, 0, "expert");
  world.ledger().clear();
  auto full = at::zeros({6 * n}, options()), shard = at::zeros({6}, options()), small = at::zeros({5}, options());
  auto out = at::zeros({6 * n}, options());
  plain->all_gather(full, shard).wait();
  plain->all_gather(full, shard).wait();
  plain->reduce_scatter(shard, full, ReduceOp::Sum).wait();
  plain->all_reduce(small, ReduceOp::Sum).wait();
  plain->all_to_all(out, full).wait();
  plain->broadcast(small, 0).wait();
  plain->barrier();
  plain->all_reduce(small, ReduceOp::Sum, {.unit = "norm", .control = true}).wait();
  world.control().barrier();
  alone->all_gather(shard, at::full({6}, 1.0, options())).wait();

  auto& ledger = world.ledger();
  int busy = n > 1;
  BOOST_TEST((ledger.at("all_gather", "dp_shard") == Traffic{2 * busy, 2 * 24 * (n - 1)}));
  BOOST_TEST((ledger.at("reduce_scatter", "dp_shard") == Traffic{busy, 24 * (n - 1)}));
  BOOST_TEST((ledger.at("all_reduce", "dp_shard") == Traffic{busy, 2 * 20 * (n - 1) / n}));
  BOOST_TEST((ledger.at("all_to_all", "dp_shard") == Traffic{busy, 24 * (n - 1)}));
  BOOST_TEST((ledger.at("broadcast", "dp_shard") == Traffic{busy, busy && rank == 0 ? 20 : 0}));
  BOOST_TEST((ledger.at("barrier", "dp_shard") == Traffic{busy, 0}));
  BOOST_TEST(ledger.entries().size() == 6u * busy);
  BOOST_TEST((ledger.at("all_gather", "expert") == Traffic{}));
  BOOST_TEST(at::equal(shard, at::full({6}, 1.0, options())));
}

// Catches: a wrong call that reaches the wire, where it would hang or corrupt.
BOOST_AUTO_TEST_CASE(wrong_tensors_are_refused) {
  auto full = at::zeros({4 * n}, options()), shard = at::zeros({4}, options());
  BOOST_CHECK_THROW(plain->all_gather(full, at::zeros({5}, options())), ShapeError);
  BOOST_CHECK_THROW(plain->all_gather(full, at::zeros({4}, options(at::kDouble))), ShapeError);
  BOOST_CHECK_THROW(plain->all_gather(full, at::Tensor()), ShapeError);
  BOOST_CHECK_THROW(plain->all_gather(at::zeros({2 * n, 8}, options()).narrow(1, 0, 2), shard), ShapeError);
  auto whole = at::zeros({4 * n + 1}, options()), one_off = whole.narrow(0, 4 * rank, 4);
  BOOST_CHECK_THROW(plain->reduce_scatter(one_off, whole.narrow(0, 1, 4 * n), ReduceOp::Sum), ShapeError);
  BOOST_CHECK_THROW(plain->all_reduce(at::zeros({4}, options(at::kInt)), ReduceOp::Average), ShapeError);
  BOOST_CHECK_THROW(plain->all_reduce(at::zeros({4}, options(at::kHalf)), ReduceOp::Sum), ShapeError);
  BOOST_CHECK_THROW(plain->broadcast(shard, n), ArgumentError);
  BOOST_CHECK_THROW(plain->all_to_all(full, full), ShapeError);
  std::vector<std::int64_t> rows(n, 1), wrong(n, 2);
  BOOST_CHECK_THROW(plain->all_to_all_v(at::zeros({n, 2}, options()), at::zeros({n, 2}, options()), rows, wrong),
                    ShapeError);
}

BOOST_AUTO_TEST_SUITE_END()

// Catches: texts cut, mixed up or padded when they differ in length.
BOOST_AUTO_TEST_CASE(texts_travel) {
  auto& world = test_world();
  auto texts = world.gather_texts(std::string(world.rank(), 'x'));
  for (int rank = 0; rank < world.size(); ++rank) BOOST_TEST(texts[rank] == std::string(rank, 'x'));
  BOOST_TEST(world.share_text(world.rank() == 0 ? "from zero" : "other") == "from zero");
  BOOST_TEST(world.share_text("").empty());
}

// Catches: a problem of one rank that the others do not hear of.
BOOST_AUTO_TEST_CASE(a_problem_of_one_rank_is_thrown_on_all) {
  auto& world = test_world();
  BOOST_CHECK_NO_THROW(world.raise_together(""));
  int last = world.size() - 1;
  BOOST_CHECK_EXCEPTION(world.raise_together(world.rank() == last ? "disk full" : ""), Error, [&](const Error& error) {
    return std::string(error.what()).starts_with("rank " + std::to_string(last) + " on ") &&
           std::string(error.what()).ends_with(": disk full") && error.code() == kExitFailure;
  });
}
