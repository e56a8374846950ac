#include "train/batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "nn/cross_entropy.h"
#include "nn/embedding.h"

namespace meshard {

Batches::Batches(const Corpus& corpus, const Config& config, const Mesh& mesh)
    : corpus_(corpus),
      sampler_(config.run.seed, corpus.train_samples()),
      micro_(config.train.micro_batch_size),
      seq_len_(config.train.seq_len),
      rank_(mesh.data_parallel_rank()),
      ranks_(mesh.data_parallel_ranks()),
      eval_windows_(std::min(corpus.eval_samples(), config.train.eval_batches * config.train.global_batch_size)),
      vocab_size_(config.model.vocab_size),
      device_(mesh.world().device()) {}

// fill(j, tokens) gives sample j of the microbatch, or returns false if there is none.
template <class Fill>
Microbatch Batches::make(const Fill& fill) const {
  // Pinned memory for a device: its copy is queued, and nobody waits for it.
  auto on_host = at::dtype(at::kLong).pinned_memory(!device_.is_cpu());
  Microbatch batch{at::empty({micro_, seq_len_}, on_host), at::empty({micro_, seq_len_}, on_host)};
  std::vector<std::int64_t> tokens(seq_len_ + 1);
  auto* ids = batch.ids.mutable_data_ptr<std::int64_t>();
  auto* targets = batch.targets.mutable_data_ptr<std::int64_t>();
  for (std::int64_t j = 0; j < micro_; ++j, ids += seq_len_, targets += seq_len_) {
    bool real = fill(j, std::span(tokens));
    if (!real) std::ranges::fill(tokens, 0);
    std::copy(tokens.begin(), tokens.end() - 1, ids);
    std::copy(tokens.begin() + 1, tokens.end(), targets);
    if (!real) std::fill(targets, targets + seq_len_, kIgnoredTarget);
  }
  check_token_ids(batch.ids, vocab_size_);  // a bad one on a device ends all work there without a word
  check_targets(batch.targets, vocab_size_);
  return {batch.ids.to(device_, /*non_blocking=*/true), batch.targets.to(device_, /*non_blocking=*/true)};
}

Microbatch Batches::train(std::int64_t first, std::int64_t index) const {
  return make([&](std::int64_t j, std::span<std::int64_t> tokens) {
    corpus_.train_sample(sampler_.sample(sample_position(first, index, rank_, ranks_, micro_, j)), tokens);
    return true;
  });
}

std::int64_t Batches::eval_rounds() const {
  auto windows_per_round = micro_ * ranks_;
  return (eval_windows_ + windows_per_round - 1) / windows_per_round;
}

Microbatch Batches::eval(std::int64_t round) const {
  return make([&](std::int64_t j, std::span<std::int64_t> tokens) {
    auto window = sample_position(0, round, rank_, ranks_, micro_, j);
    if (window >= eval_windows_) return false;
    corpus_.eval_sample(window, tokens);
    return true;
  });
}

}  // namespace meshard
