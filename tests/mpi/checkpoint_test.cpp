// Saving and loading a sharded mixture-of-experts model and its optimizer: any mesh to any mesh, all or nothing.

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include <boost/test/unit_test.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/sharded_state.h"
#include "config/config.h"
#include "sharding/model_hash.h"
#include "support/faulty_files.h"
#include "support/mpi_test.h"
#include "support/sharded_pair.h"
#include "train/assemble.h"
#include "train/initialise.h"
#include "train/sharded_model.h"
#include "train/training_state.h"

using namespace meshard;

namespace {

namespace fs = std::filesystem;

struct Layout {
  int outer, ep;
  Strategy strategy;
};

// Every strategy, every ep that divides the ranks, outer axes of all sizes.
std::vector<Layout> layouts() {
  std::vector<Layout> all;
  int ranks = test_world().size(), next = 0;
  for (auto strategy : kStrategies) {
    for (int ep = 1; ep <= ranks; ep *= 2) {
      int outer = 1 << (next++ % 3);
      if (ranks % ep != 0) continue;
      all.push_back({ranks % outer == 0 ? outer : 1, ep, strategy});
    }
  }
  return all;
}

// A model whose optimizer state differs from element to element, as after a step.
struct Run {
  explicit Run(const Layout& layout, bool filled)
      : config(parse_config(
            R"(
schema: 1
model:
  {vocab_size: 40, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 24,
   tie_word_embeddings: true,
   moe: {n_routed_experts: 8, num_experts_per_tok: 2, n_shared_experts: 1, moe_intermediate_size: 6,
         first_k_dense_replace: 1}}
train: {steps: 3, global_batch_size: 24, micro_batch_size: 1, seq_len: 8}
data: {type: synthetic}
)",
            "test.yaml",
            {"parallel.dp_outer=" + std::to_string(layout.outer), "parallel.expert=" + std::to_string(layout.ep),
             "parallel.strategy=" + std::string(to_string(layout.strategy))},
            test_world().size())),
        mesh(test_world(), mesh_shape(config, test_world().size())),
        sharded(shard_model(config, mesh)),
        optimizer(make_optimizer(config)) {
    optimizer->allocate(sharded.context->weight_shards());
    if (filled) fill();
  }

  void fill() {
    initialise_sharded(*sharded.context, 7);
    optimizer->set_steps(5);
    for (auto& tensor : state().tensors) {
      bool moment = tensor.key.starts_with("optimizer.") && !tensor.key.ends_with(".step");
      bool bias = tensor.key.ends_with("e_score_correction_bias");
      if (!moment && !bias) continue;
      for (auto& piece : tensor.pieces) piece.values.copy_(expected(tensor, piece.box));
    }
  }

  // A value for every element of a tensor, from its key and global index alone.
  static at::Tensor expected(const StateTensor& tensor, const Box& box) {
    auto numel = whole(tensor.shape).numel();
    auto values =
        (at::arange(numel, at::kFloat) * 0.25 + static_cast<double>(hash_text(tensor.key) % 1000)).view(tensor.shape);
    for (std::size_t d = 0; d < box.sizes.size(); ++d) values = values.narrow(d, box.offsets[d], box.sizes[d]);
    return values;
  }

  StateDict state() const { return training_state(*sharded.context, *optimizer, config, 0.1); }
  std::uint64_t hash() const { return model_hash(*sharded.context); }

  void check_optimizer_and_bias() const {
    for (auto& tensor : state().tensors) {
      bool moment = tensor.key.starts_with("optimizer.") && !tensor.key.ends_with(".step");
      if (!moment && !tensor.key.ends_with("e_score_correction_bias")) continue;
      for (auto& piece : tensor.pieces) {
        BOOST_TEST(at::equal(piece.values, expected(tensor, piece.box)), tensor.key << " " << to_string(piece.box));
      }
    }
  }

  Config config;
  Mesh mesh;
  ShardedModel sharded;
  std::unique_ptr<Optimizer> optimizer;
};

void save(FileSystem& files, const fs::path& folder, const Run& run) {
  Saver saver(test_world(), files, /*async=*/false);
  saver.save(folder, run.state(), {{"step", 5}});
}

void load(const fs::path& folder, Run& run) {
  CheckpointReader reader(posix_file_system(), folder);
  auto state = run.state();
  BOOST_TEST(reader.compare(state).empty(), reader.compare(state).text());
  reader.read(state);
  run.optimizer->set_steps(optimizer_steps(state));
  run.sharded.context->refresh_weights();
}

}  // namespace

// Catches: a row, an expert or a moment that lands elsewhere on another mesh, is written twice or by nobody; a tied
// weight or the bias lost; checksums that do not fit what was written.
BOOST_AUTO_TEST_CASE(every_layout_to_the_next) {
  auto all = layouts();
  Run first(all.front(), true);
  auto hash = first.hash();
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto& target = all[(i + 1) % all.size()];
    BOOST_TEST_CONTEXT(to_string(all[i].strategy)
                       << " ep " << all[i].ep << " to " << to_string(target.strategy) << " ep " << target.ep) {
      auto folder = fs::path(test_folder()) / ("step-" + std::to_string(i));
      Run source(all[i], true);
      save(posix_file_system(), folder, source);
      auto problems = CheckpointReader(posix_file_system(), folder).verify(test_world().rank(), test_world().size());
      BOOST_TEST(problems.empty(), (problems.empty() ? "" : problems.front()));

      Run loaded(target, false);
      load(folder, loaded);
      BOOST_TEST(loaded.hash() == hash);
      BOOST_TEST(loaded.optimizer->steps() == 5);
      loaded.check_optimizer_and_bias();
    }
  }
}

// Catches: an asynchronous save that writes what training made of the weights meanwhile, or is complete too early.
BOOST_AUTO_TEST_CASE(a_save_in_flight_keeps_what_it_was_given) {
  auto& world = test_world();
  Run run({1, 1, Strategy::Fsdp}, true);
  auto hash = run.hash();
  auto folder = fs::path(test_folder()) / "async";
  Saver saver(world, posix_file_system(), /*async=*/true);
  saver.save(folder, run.state(), {{"step", 5}});
  BOOST_TEST(saver.in_flight());
  for (auto& tensor : run.state().tensors) {
    for (auto& piece : tensor.pieces) piece.values.zero_();
  }
  auto done = saver.finish();
  BOOST_REQUIRE(done.has_value());
  BOOST_TEST(!saver.in_flight());
  Run loaded({1, 1, Strategy::Hsdp}, false);
  load(folder, loaded);
  BOOST_TEST(loaded.hash() == hash);
  loaded.check_optimizer_and_bias();
}

// Catches: a failed write that leaves a checkpoint, harms the one before, is told on one rank only, or hangs the
// others.
BOOST_AUTO_TEST_CASE(a_failure_of_one_rank_fails_the_save_of_all) {
  using Op = FaultyFiles::Op;
  auto& world = test_world();
  Run run({1, 1, Strategy::Fsdp}, true);
  auto good = fs::path(test_folder()) / "good", bad = fs::path(test_folder()) / "bad";
  save(posix_file_system(), good, run);
  int culprit = world.size() - 1;
  for (auto op : {Op::Create, Op::Append, Op::Sync, Op::Close}) {
    FaultyFiles files;
    if (world.rank() == culprit) files.fail(op, 1, "No space left on device");
    BOOST_CHECK_EXCEPTION(save(files, bad, run), Error, [&](const Error& error) {
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
    BOOST_CHECK_THROW(save(files, bad, run), Error);
    world.control().barrier();
    fs::remove_all(bad);
    world.control().barrier();
  }
  BOOST_TEST(CheckpointReader(posix_file_system(), good).verify().empty());
  save(posix_file_system(), bad, run);
  BOOST_TEST(CheckpointReader(posix_file_system(), bad).verify().empty());
}
