// Saved on any mesh, loaded on any other one, to the bit. checkpoint_reshard_test.sh runs the cases on 1, 2, 3 and 4
// ranks, first all saves, then all loads; MESHARD_RESHARD_FOLDER lies between them.

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>

#include "mpi/checkpoint_run.h"

using namespace meshard;

namespace {

constexpr unsigned kSeed = 20;
constexpr int kRandomPairs = 50;

// Every strategy on every mesh, dense and of experts, of 1 to 4 ranks.
std::vector<Layout> every_layout() {
  std::vector<Layout> all;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int outer = 1; outer <= ranks; ++outer) {
      for (int ep = 1; ep <= ranks; ++ep) {
        if (ranks % outer != 0 || ranks % ep != 0) continue;
        for (auto strategy : kStrategies) all.push_back({ranks, outer, ep, strategy});
      }
    }
  }
  return all;
}

std::filesystem::path folder_of(std::size_t layout) {
  return std::filesystem::path(std::getenv("MESHARD_RESHARD_FOLDER")) / fmt::format("step-{:08}", layout);
}

std::filesystem::path folder_of_groups(int ranks) {
  return std::filesystem::path(std::getenv("MESHARD_RESHARD_FOLDER")) / fmt::format("groups-{}", ranks);
}

// One unit of four groups: trained in two dtypes, and frozen in two.
class FourGroups : public Module {
 public:
  FourGroups() {
    for (auto dtype : {at::kFloat, at::kBFloat16}) {
      auto width = dtype == at::kFloat ? 4 : 6;
      auto suffix = dtype == at::kFloat ? "fp32" : "bf16";
      add_parameter(fmt::format("trained_{}", suffix), {7, width}, dtype, Init::normal(0.02), true);
      auto frozen = add_parameter(fmt::format("frozen_{}", suffix), {5, width}, dtype, Init::normal(0.02), true);
      frozen.slot().requires_grad = false;
    }
  }

 protected:
  at::Tensor forward(const at::Tensor& x) override { return x; }
};

struct GroupsRun {
  explicit GroupsRun(Strategy strategy)
      : mesh(test_world(), {test_world().size(), 1, test_world().size()}), runtime(model, mesh) {
    runtime.fully_shard(model, {.strategy = strategy});
    saved.emplace(config, runtime, optimizer);
  }
  StateDict state() const { return saved->state(); }

  Config config;
  Mesh mesh;
  FourGroups model;
  ShardingRuntime runtime;
  AdamW optimizer{{}};
  std::optional<SavedModel> saved;
};

// (source, target): each layout once as either, then some more at random.
std::vector<std::pair<std::size_t, std::size_t>> pairs(std::size_t layouts) {
  std::vector<std::size_t> targets(layouts);
  for (std::size_t i = 0; i < layouts; ++i) targets[i] = i;
  std::mt19937 random(kSeed);
  std::ranges::shuffle(targets, random);
  std::vector<std::pair<std::size_t, std::size_t>> all;
  for (std::size_t i = 0; i < layouts; ++i) all.emplace_back(i, targets[i]);
  for (int i = 0; i < kRandomPairs; ++i) {
    auto source = random() % layouts;
    all.emplace_back(source, random() % layouts);
  }
  return all;
}

}  // namespace

// Catches: rows or experts written twice or by nobody; checksums that do not fit what was written.
BOOST_AUTO_TEST_CASE(every_layout_saves) {
  auto all = every_layout();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].ranks != test_world().size()) continue;
    BOOST_TEST_CONTEXT(to_string(all[i])) {
      CheckpointRun run(all[i], i % 2 == 0 ? "fp32" : "bf16");
      run.fill();
      save_run(posix_file_system(), folder_of(i), run);
      auto problems =
          CheckpointReader(posix_file_system(), folder_of(i)).verify(test_world().rank(), all[i].ranks).problems;
      BOOST_TEST(problems.empty(), (problems.empty() ? "" : problems.front()));
    }
  }
}

// Catches: a row, an expert or a moment that lands elsewhere on another mesh or not at all; a tied weight, the bias or
// the step count lost.
BOOST_AUTO_TEST_CASE(every_layout_loads_another) {
  auto all = every_layout();
  int loaded = 0;
  for (auto& [source, target] : pairs(all.size())) {
    if (all[target].ranks != test_world().size()) continue;
    BOOST_TEST_CONTEXT("seed " << kSeed << ": " << to_string(all[source]) << " to " << to_string(all[target])) {
      CheckpointRun run(all[target], target % 2 == 0 ? "fp32" : "bf16");
      run.load(folder_of(source));
      run.check();
      ++loaded;
    }
  }
  if (test_world().rank() == 0) std::printf("%d loads\n", loaded);
}

// Catches: groups of one unit that share a name, and with it their moments: one's saved for the other, or for frozen
// weights.
BOOST_AUTO_TEST_CASE(groups_of_one_unit_save) {
  GroupsRun run(kStrategies[test_world().size()]);
  std::set<std::string> trained;
  for (auto& tensor : run.state().tensors) {
    if (!tensor.key.starts_with("optimizer.state.")) continue;
    trained.insert(tensor.key);
    auto shape = whole(tensor.shape);
    bool bf16 = tensor.key.find("_bf16") != std::string::npos;
    if (!is_step(tensor)) BOOST_TEST(shape.numel() == (bf16 ? 42 : 28), tensor.key);
  }
  std::set<std::string> expected;
  for (auto parameter : {"trained_fp32", "trained_bf16"}) {
    for (auto state : {"exp_avg", "exp_avg_sq", "step"}) {
      expected.insert(fmt::format("optimizer.state.{}.{}", parameter, state));
    }
  }
  BOOST_TEST(trained == expected, boost::test_tools::per_element());
  run.saved->fill();
  save_run(posix_file_system(), folder_of_groups(test_world().size()), run);
}

// Catches: the same on the way back.
BOOST_AUTO_TEST_CASE(groups_of_one_unit_load) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    BOOST_TEST_CONTEXT("saved on " << ranks) {
      GroupsRun run(kStrategies[(ranks + test_world().size()) % std::size(kStrategies)]);
      run.saved->load(folder_of_groups(ranks));
      run.saved->check();
    }
  }
}
