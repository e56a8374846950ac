#include "train/evaluate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "comm/world/together.h"
#include "module/device_path.h"
#include "plan/sharding.h"
#include "train/options.h"
#include "train/resume.h"
#include "train/sharded_model.h"

namespace meshard {

namespace {

// Any number of ranks will do: every one holds its part of everything.
void shard_over_all_ranks(ParallelConfig& parallel, int ranks) {
  parallel.dp_outer = 1;
  parallel.dp_shard = ranks;
  parallel.expert = 1;
  parallel.strategy = Strategy::Fsdp;
}

}  // namespace

double sum_over_ranks(World& world, double value) {
  auto sum = at::full({1}, value, at::kDouble);
  world.control().all_reduce(sum, ReduceOp::Sum, {"loss", true}).wait();
  return *sum.const_data_ptr<double>();
}

std::optional<double> held_out_loss(World& world, CausalLM& model, const Batches& batches,
                                    const std::function<bool()>& stop) {
  c10::NoGradGuard no_grad;
  auto sum = at::zeros({}, at::device(world.device()).dtype(at::kDouble));
  for (std::int64_t round = 0; round < batches.eval_rounds(); ++round) {
    if (stop()) return {};
    auto batch = batches.eval(round);
    sum += model.loss(batch.ids, batch.targets, 1.0);
  }
  return sum_over_ranks(world, *read_back(sum).const_data_ptr<double>()) / static_cast<double>(batches.eval_tokens());
}

void check_held_out(const Corpus& corpus, const Config& config, const std::string& or_else) {
  if (corpus.eval_samples() > 0) return;
  throw ConfigError(fmt::format(
      "nothing is held out: data.validation_fraction {} of each file is shorter than a sample, train.seq_len + 1 = {} "
      "tokens; raise the fraction, lower train.seq_len, or give longer files{}",
      config.data.validation_fraction, config.train.seq_len + 1, or_else));
}

Evaluation evaluate_checkpoint(World& world, Config config, const std::filesystem::path& checkpoint, Log& log) {
  shard_over_all_ranks(config.parallel, world.size());
  on_rank_0(world, [&] { require_fit(posix_file_system(), checkpoint, config); });
  auto corpus = open_corpus(corpus_options(config));
  check_held_out(*corpus, config);
  Mesh mesh(world, mesh_shape(config, world.size()));
  Batches batches(*corpus, config, mesh);
  auto [model, runtime] = shard_model(config, mesh);
  auto optimizer = make_optimizer(config);
  auto loaded = load_weights(world, posix_file_system(), checkpoint, {config, *runtime, *optimizer});
  if (!loaded.notes.empty()) log.print(loaded.notes);

  auto loss = held_out_loss(world, *model.lm, batches, [] { return false; });
  return {*loss, batches.eval_tokens(), corpus->is_bytes()};
}

}  // namespace meshard
