// A save is all or nothing, beside training too. checkpoint_reshard_test.cpp has the meshes.

#include "base/error.h"
#include "mpi/checkpoint_run.h"
#include "support/faulty_files.h"

using namespace meshard;

namespace {

namespace fs = std::filesystem;

Layout here(Strategy strategy) {
  return {test_world().size(), 1, 1, strategy};
}

}  // namespace

// Catches: an asynchronous save that writes what training made of the weights meanwhile, or is complete too early.
BOOST_AUTO_TEST_CASE(a_save_in_flight_keeps_what_it_was_given) {
  auto& world = test_world();
  CheckpointRun run(here(Strategy::Fsdp));
  run.fill();
  auto folder = fs::path(test_folder()) / "async";
  Saver saver(world, posix_file_system(), /*async=*/true);
  saver.save(folder, run.state(), {{"step", kStepsBefore}});
  BOOST_TEST(saver.in_flight());
  for (auto& tensor : run.state().tensors) {
    for (auto& piece : tensor.pieces) piece.values.zero_();
  }
  auto done = saver.finish();
  BOOST_REQUIRE(done.has_value());
  BOOST_TEST(!saver.in_flight());
  CheckpointRun loaded(here(Strategy::Hsdp));
  loaded.load(folder);
  loaded.check();
}

// Catches: a failed write that leaves a checkpoint, harms the one before, is told on one rank only, or hangs the
// others.
BOOST_AUTO_TEST_CASE(a_failure_of_one_rank_fails_the_save_of_all) {
  using Op = FaultyFiles::Op;
  auto& world = test_world();
  CheckpointRun run(here(Strategy::Fsdp));
  run.fill();
  auto good = fs::path(test_folder()) / "good", bad = fs::path(test_folder()) / "bad";
  save_run(posix_file_system(), good, run);
  int culprit = world.size() - 1;
  for (auto op : {Op::Create, Op::Append, Op::Sync, Op::Close}) {
    FaultyFiles files;
    if (world.rank() == culprit) files.fail(op, 1, "No space left on device");
    BOOST_CHECK_EXCEPTION(save_run(files, bad, run), Error, [&](const Error& error) {
      return std::string(error.what()).find("No space left on device") != std::string::npos;
    });
    BOOST_TEST(!fs::exists(bad));
    world.control().barrier();
    BOOST_TEST(!fs::exists(bad.string() + ".partial"));
    world.control().barrier();  // the next save makes one
  }
  for (auto op : {Op::MakeFolder, Op::Rename, Op::SyncFolder}) {  // rank 0's alone
    FaultyFiles files;
    if (world.rank() == 0) files.fail(op, 1, "Input/output error");
    BOOST_CHECK_THROW(save_run(files, bad, run), Error);
    world.control().barrier();
    fs::remove_all(bad);
    world.control().barrier();
  }
  BOOST_TEST(CheckpointReader(posix_file_system(), good).verify().empty());
  save_run(posix_file_system(), bad, run);
  BOOST_TEST(CheckpointReader(posix_file_system(), bad).verify().empty());
}
