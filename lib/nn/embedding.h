#pragma once
// Token embedding: rows of a table.

#include <ATen/core/Tensor.h>

#include "module/module.h"

namespace meshard {

class Embedding : public Module {
 public:
  /// Local. Parameter "weight" [vocab_size, hidden_size] ~ Normal(std), without weight decay.
  Embedding(std::int64_t vocab_size, std::int64_t hidden_size, double std, const at::TensorOptions& options);

  const Parameter& weight() const { return weight_; }

 protected:
  /// Local. ids int64 [...] -> [..., hidden_size]. ArgumentError, with the id, for a token outside the vocabulary
  /// (CPU).
  at::Tensor forward(const at::Tensor& ids) override;

 private:
  Parameter weight_;
};

/// Local. ArgumentError, with the id, for a token outside the vocabulary. ids int64 on the CPU; others are not looked
/// at: who uploads them checks them before.
void check_token_ids(const at::Tensor& ids, std::int64_t vocab_size);

/// Local. Gradient of the table: target [vocab, hidden] = beta * target + for each token, grad [tokens, hidden] added
/// to row ids[token]. Sums of a row are made in fp32 in the order of the tokens: independent of the thread count.
void embedding_backward_cpu(const at::Tensor& grad, const at::Tensor& ids, at::Tensor& target, int beta);
void embedding_backward_aten(const at::Tensor& grad, const at::Tensor& ids, at::Tensor& target, int beta);

}  // namespace meshard
