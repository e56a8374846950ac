#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "comm/mpi/backend.h"
#include "support/mpi_test.h"

using namespace meshard;

namespace {

constexpr double kPatience = 40.0;  // seconds: for a machine on which other tests run

/// An engine of its own, beside that of the World, which rests meanwhile.
struct OwnEngine {
  World& world = test_world();
  int n = world.size(), rank = world.rank();
  Recorder recorder{std::filesystem::path(test_folder()) / "progress", rank, "host", 1};
  MpiEngine engine{recorder};
  MpiComm comm = MpiComm::duplicate(MPI_COMM_WORLD, "test");
  MpiChannel channel{
      .comm = comm.get(), .rank = rank, .size = n, .axis = "test", .max_message_bytes = kMaxMessageBytes};

  template <typename Start>
  std::unique_ptr<MpiOperation> issue(const Start& start) {
    std::lock_guard lock(engine.mutex());
    std::unique_ptr<MpiOperation> operation = start();
    engine.add(*operation, channel);
    return operation;
  }

  /// Uses the core, and no MPI, until `done` or for `seconds`.
  template <typename Done>
  bool compute_until(const Done& done, double seconds) {
    double x = 1.0;
    for (auto end = steady_seconds() + seconds; steady_seconds() < end && std::isfinite(x);) {
      if (done()) return true;
      for (int i = 0; i < 100'000; ++i) x = std::sqrt(x + i);
    }
    return done();
  }

  /// Ranks leave no case before their peers have what they need of them.
  ~OwnEngine() {
    engine.stop_thread();
    world.control().barrier();
  }
};

constexpr std::int64_t kShard = 3 << 20;  // elements; far beyond what MPI sends unasked

struct Tensors {
  at::Tensor shard, full, grads, slice, sum;

  explicit Tensors(const OwnEngine& own)
      : shard(at::full({kShard}, own.rank + 1.5f)),
        full(at::empty({own.n * kShard})),
        grads(at::randn({own.n * kShard})),
        slice(at::empty({kShard})),
        sum(at::randn({kShard})) {}
};

/// The three collectives at once, computed beside, waited for. Returns how many were complete before any wait.
int run_beside_computation(OwnEngine& own, Tensors& t, bool until_done) {
  std::vector<std::unique_ptr<MpiOperation>> operations;
  operations.push_back(own.issue([&] { return start_all_gather(own.channel, t.full, t.shard); }));
  operations.push_back(
      own.issue([&] { return start_reduce_scatter(own.channel, t.slice, t.grads, ReduceOp::Average); }));
  operations.push_back(own.issue([&] { return start_all_reduce(own.channel, t.sum, ReduceOp::Sum); }));
  auto count = [&] {
    return std::ranges::count_if(operations, [&](auto& each) { return own.engine.finished(*each); });
  };
  own.compute_until([&] { return count() == 3; }, until_done ? kPatience : 0.5);
  auto before = count();
  for (auto& each : operations) own.engine.finish(*each);
  for (auto& each : operations) own.engine.remove(*each);
  return static_cast<int>(before);
}

class Broken : public MpiOperation {
 public:
  bool step() override { throw CommError("the cable is out"); }
};

class Endless : public MpiOperation {
 public:
  bool step() override { return ++steps < 0; }
  std::atomic<int> steps = 0;
};

}  // namespace

// Catches: operations that go on only while somebody waits; a thread that folds in another order, or two that step one
// operation at a time; a run without a thread that has one.
BOOST_FIXTURE_TEST_CASE(operations_move_on_while_all_ranks_compute, OwnEngine) {
  Tensors still(*this), beside(*this);
  beside.grads.copy_(still.grads);
  beside.sum.copy_(still.sum);
  BOOST_TEST(run_beside_computation(*this, still, false) == 0);
  engine.start_thread();
  BOOST_TEST(run_beside_computation(*this, beside, true) == 3);
  engine.stop_thread();
  BOOST_TEST(at::equal(still.full, beside.full));
  BOOST_TEST(at::equal(still.full, at::arange(1, n + 1, at::kFloat).add_(0.5).repeat_interleave(kShard)));
  BOOST_TEST(at::equal(still.slice, beside.slice));
  BOOST_TEST(at::equal(still.sum, beside.sum));
}

// Catches: an error that ends the thread or the process, that another operation's wait throws, or that nobody does.
BOOST_FIXTURE_TEST_CASE(an_error_belongs_to_its_operation, OwnEngine) {
  for (bool thread : {false, true}) {
    if (thread) engine.start_thread();
    Tensors t(*this);
    Broken broken;
    {
      std::lock_guard lock(engine.mutex());
      engine.add(broken, channel);
    }
    auto gather = issue([&] { return start_all_gather(channel, t.full, t.shard); });
    if (thread) BOOST_TEST(compute_until([&] { return engine.finished(broken); }, kPatience));
    engine.finish(*gather);
    BOOST_CHECK_THROW(engine.finish(broken), CommError);
    engine.remove(*gather);
    engine.remove(broken);
  }
}

// Catches: a thread that goes on with what an exception left behind, through a communicator that is gone, or after its
// end.
BOOST_FIXTURE_TEST_CASE(what_is_left_behind_ends_with_its_channel, OwnEngine) {
  engine.start_thread();
  Endless left, other;
  MpiChannel another = channel;
  {
    std::lock_guard lock(engine.mutex());
    engine.add(left, channel);
    engine.add(other, another);
  }
  BOOST_TEST(compute_until([&] { return left.steps > 3; }, kPatience));
  engine.remove_all(channel);
  auto steps = left.steps.load(), others = other.steps.load();
  BOOST_TEST(compute_until([&] { return other.steps > others + 3; }, kPatience));
  BOOST_TEST(left.steps == steps);
  engine.stop_thread();
  others = other.steps;
  compute_until([] { return false; }, 0.05);
  BOOST_TEST(other.steps == others);
  engine.remove(other);
}

// Catches: busy time up to the wait instead of up to completion; time waited that is booked though nothing was left to
// wait for, or not booked; an operation that stays under way in the ledger.
BOOST_FIXTURE_TEST_CASE(the_ledger_knows_what_was_exposed, OwnEngine) {
  engine.start_thread();
  auto axis = std::make_unique<MpiCommunicator>(MpiComm::duplicate(comm.get(), "dp_shard"), MPI_COMM_WORLD, "dp_shard",
                                                engine, recorder, kMaxMessageBytes);
  auto& ledger = recorder.ledger(false);
  Tensors t(*this);
  ledger.clear();
  auto work = axis->all_gather(t.full, t.shard);
  auto begin = steady_seconds();
  // The recorder's copy of the engine's word: complete once nothing is under way any more.
  auto over = [&] {
    recorder.collect();
    return ledger.busy(steady_seconds() + 100.0) < 100.0;
  };
  BOOST_TEST(compute_until(over, kPatience));
  auto issued = ledger.exposed(), busy = ledger.busy(steady_seconds());
  BOOST_TEST(busy > 0.0);
  BOOST_TEST(busy < steady_seconds() - begin + issued + 0.001);
  compute_until([] { return false; }, 0.3);
  work.wait();
  BOOST_TEST(ledger.exposed() - issued < 0.25);  // nothing was left to wait for
  BOOST_TEST(ledger.busy(steady_seconds()) == busy);

  engine.stop_thread();
  ledger.clear();
  if (rank == 0) compute_until([] { return false; }, 1.0);
  axis->all_gather(t.full, t.shard).wait();
  if (rank == 1) BOOST_TEST(ledger.exposed_by_axis().at("dp_shard") > 0.5);  // rank 0 came late
}
