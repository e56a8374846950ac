// A save is all or nothing, beside training too. checkpoint_reshard_test.cpp has the meshes.

#include "base/error.h"
#include "mpi/checkpoint_run.h"
#include "support/faulty_files.h"
#include "train/data_record.h"

using namespace meshard;

namespace {

namespace fs = std::filesystem;

Layout here(Strategy strategy) {
  return {test_world().size(), 1, 1, strategy};
}

DataFile file_of(const std::string& name, const std::string& content) {
  auto bytes = std::span(reinterpret_cast<const unsigned char*>(content.data()), content.size());
  return {name, std::ssize(content), std::ssize(content) + 1, fingerprint(bytes)};
}

DataRecord record_of(std::vector<DataFile> files, std::int64_t training = 10, std::int64_t held_out = 1) {
  return {std::move(files), training, held_out};
}

}  // namespace

// Catches: a difference of the data that is not told, told under another name, or told of files that only moved, were
// renamed, or are two of the same name.
BOOST_AUTO_TEST_CASE(differences_of_the_data_are_told) {
  using Lines = std::vector<std::string>;
  auto a = file_of("a", "alpha"), b = file_of("b", "beta"), c = file_of("c", "gamma");
  auto other_a = file_of("a", "gamma");
  auto told = [](const DataRecord& before, const DataRecord& now, const Lines& lines) {
    BOOST_TEST(data_differences(before, now) == lines, boost::test_tools::per_element());
  };
  told(record_of({a, b}), record_of({a, b}), {});
  told(record_of({a, b}), record_of({file_of("x", "alpha"), file_of("y", "beta")}), {});
  told(record_of({a, other_a}), record_of({a, other_a}), {});
  told(record_of({}), record_of({}), {});
  told(record_of({a, b}), record_of({a, b}, 10, 2), {"training and held-out samples: 10 and 1 then, 10 and 2 now"});
  told(record_of({b}), record_of({a, b}, 20), {"a is new: 5 bytes",
                                               "training and held-out samples: 10 and 1 then, 20 and 1 now"});
  told(record_of({a, b}), record_of({a}), {"b is gone: 4 bytes then"});
  told(record_of({a, b}), record_of({a, file_of("b", "beta, more")}), {"b has grown: 4 bytes then, 10 now"});
  told(record_of({a, b}), record_of({file_of("a", "alp"), b}), {"a has shrunk: 5 bytes then, 3 now"});
  told(record_of({a}), record_of({other_a}), {"a has other content: 5 bytes, as then"});
  told(record_of({a, b, c}), record_of({c, a, b}),
       {"the order of the files is another: b came before c then, and comes after it now"});
  told(record_of({a, b}), record_of({c, b}), {"a is gone: 5 bytes then", "c is new: 5 bytes"});
  told(record_of({a, c}), record_of({other_a}), {"a is gone: 5 bytes then"});  // c is called a now
}

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
  BOOST_TEST(CheckpointReader(posix_file_system(), good).verify().sound());
  save_run(posix_file_system(), bad, run);
  BOOST_TEST(CheckpointReader(posix_file_system(), bad).verify().sound());
}
