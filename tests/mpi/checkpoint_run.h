#pragma once
// Sharded models and their optimizers on one mesh, with a value for every element that follows from its key and global
// index alone: what a load on any other mesh must find.

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <limits>

#include "base/hash.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "config/config.h"
#include "plan/sharding.h"
#include "support/sharded_pair.h"
#include "train/options.h"
#include "train/sharded_model.h"
#include "train/training_state.h"

namespace meshard {

constexpr std::int64_t kStepsBefore = 5;

inline bool is_step(const StateTensor& tensor) {
  return tensor.key.starts_with("optimizer.") && tensor.key.ends_with(".step");
}

inline at::Tensor expected_values(const StateTensor& tensor, const Box& box) {
  if (is_step(tensor)) return at::full(tensor.shape, static_cast<double>(kStepsBefore), at::kFloat);
  auto tied = tensor.key == "model.lm_head.weight";
  auto salt = hash_text(tied ? "model.model.embed_tokens.weight" : tensor.key) % 1000;
  auto numel = whole(tensor.shape).numel();
  return part_of((at::arange(numel, at::kFloat) * 0.25 + static_cast<double>(salt)).view(tensor.shape), box);
}

/// A model under the sharding runtime, and its optimizer; NaN everywhere at first.
class SavedModel {
 public:
  SavedModel(const Config& config, ShardingRuntime& runtime, Optimizer& optimizer)
      : config_(config), runtime_(runtime), optimizer_(optimizer) {
    optimizer_.allocate(runtime_.weight_shards());
    for (auto& tensor : state().tensors) {
      for (auto& piece : tensor.pieces) piece.values.fill_(std::numeric_limits<double>::quiet_NaN());
    }
  }

  /// Collective. As after some steps.
  void fill() {
    optimizer_.set_steps(kStepsBefore);
    for (auto& tensor : state().tensors) {
      if (is_step(tensor)) continue;
      for (auto& piece : tensor.pieces) piece.values.copy_(expected_values(tensor, piece.box));
    }
    runtime_.refresh_weights();
  }

  /// Collective.
  void load(const std::filesystem::path& folder) {
    CheckpointReader reader(posix_file_system(), folder);
    auto into = state();
    BOOST_TEST(reader.compare(into).empty(), reader.compare(into).text());
    reader.read(into);
    optimizer_.set_steps(optimizer_steps(into, "loaded"));
    runtime_.refresh_weights();
  }

  /// Local. Every element that this rank holds, to the bit.
  void check() const {
    for (auto& tensor : state().tensors) {
      for (auto& piece : tensor.pieces) {
        BOOST_TEST(at::equal(piece.values, expected_values(tensor, piece.box)),
                   tensor.key << " " << to_string(piece.box));
      }
    }
  }

  StateDict state() const { return training_state(runtime_, optimizer_, config_, 0.1); }

 private:
  const Config& config_;
  ShardingRuntime& runtime_;
  Optimizer& optimizer_;
};

struct Layout {
  int ranks, outer, ep;
  Strategy strategy;
};

inline std::string to_string(const Layout& layout) {
  return fmt::format("{} ranks, dp_outer {}, expert {}, {}", layout.ranks, layout.outer, layout.ep,
                     to_string(layout.strategy));
}

/// A mixture of experts.
class CheckpointRun {
 public:
  /// Collective. `param`: of the weights that the model computes with; those saved are fp32.
  explicit CheckpointRun(const Layout& layout, const std::string& param = "fp32")
      : config_(parse_config(
            R"(
schema: 1
model:
  {vocab_size: 40, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 24,
   tie_word_embeddings: true,
   moe: {n_routed_experts: 12, num_experts_per_tok: 2, n_shared_experts: 1, moe_intermediate_size: 6,
         first_k_dense_replace: 1}}
train: {steps: 3, global_batch_size: 24, micro_batch_size: 1, seq_len: 8}
data: {type: synthetic}
)",
            "test.yaml",
            {fmt::format("parallel.dp_outer={}", layout.outer), fmt::format("parallel.expert={}", layout.ep),
             fmt::format("parallel.strategy={}", to_string(layout.strategy)), "precision.param=" + param},
            test_world().size())),
        mesh_(test_world(), mesh_shape(config_, test_world().size())),
        sharded_(shard_model(config_, mesh_)),
        optimizer_(make_optimizer(config_)),
        saved_(config_, *sharded_.runtime, *optimizer_) {}

  void fill() { saved_.fill(); }
  void load(const std::filesystem::path& folder) { saved_.load(folder); }
  void check() const { saved_.check(); }
  StateDict state() const { return saved_.state(); }

 private:
  Config config_;
  Mesh mesh_;
  ShardedModel sharded_;
  std::unique_ptr<Optimizer> optimizer_;
  SavedModel saved_;
};

/// Collective. Synchronous.
template <class Run>
void save_run(FileSystem& files, const std::filesystem::path& folder, const Run& run) {
  Saver saver(test_world(), files, /*async=*/false);
  saver.save(folder, run.state(), {{"step", kStepsBefore}});
}

}  // namespace meshard
