#pragma once
// Token ids of this rank's microbatches. CONTRACT.md section 3.

#include <ATen/core/Tensor.h>

#include "config/config.h"
#include "data/corpus.h"
#include "data/sampler.h"
#include "mesh/mesh.h"

namespace meshard {

struct Microbatch {
  at::Tensor ids;      ///< [micro_batch_size, seq_len] int64
  at::Tensor targets;  ///< the same, one token on; -100 = no target
};

class Batches {
 public:
  /// Local. `corpus` must outlive it.
  Batches(const Corpus& corpus, const Config& config, const Mesh& mesh);

  /// Local. Microbatch `index` of the step whose global batch starts at sample position `first`.
  Microbatch train(std::int64_t first, std::int64_t index) const;

  /// Local. How often every rank must call eval(): the held-out windows in rounds of micro_batch_size a rank.
  std::int64_t eval_rounds() const;
  /// Local. This rank's windows of a round; those past the last one have no targets.
  Microbatch eval(std::int64_t round) const;
  /// Target tokens of one evaluation, over all ranks.
  std::int64_t eval_tokens() const { return eval_windows_ * seq_len_; }

 private:
  template <class Fill>
  Microbatch make(const Fill& fill) const;

  const Corpus& corpus_;
  Sampler sampler_;
  std::int64_t micro_, seq_len_, rank_, ranks_, eval_windows_, vocab_size_;
  at::Device device_;
};

}  // namespace meshard
