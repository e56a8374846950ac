#pragma once
// A router in plain loops, in double, written from the formulas: slow, and with nothing of the library's inside but
// its options.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "moe/options.h"

namespace meshard::reference {

using Row = std::vector<double>;
using Rows = std::vector<Row>;
using Ids = std::vector<std::int64_t>;

/// The `count` places of the largest values, one search after the other: NaN before all, of equals the first.
template <class T>
Ids largest(const std::vector<T>& values, std::int64_t count) {
  Ids result;
  std::vector<bool> taken(values.size(), false);
  for (std::int64_t k = 0; k < count; ++k) {
    std::int64_t best = -1;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (taken[i]) continue;
      const bool better = best < 0 || (std::isnan(values[i]) && !std::isnan(values[best])) || values[i] > values[best];
      if (better) best = static_cast<std::int64_t>(i);
    }
    taken[best] = true;
    result.push_back(best);
  }
  return result;
}

struct Choice {
  Ids ids;
  double gap = std::numeric_limits<double>::infinity();
};

/// q: biased scores of one token.
inline Choice choose(std::vector<float> q, const MoeOptions& options) {
  bool nan = false;
  for (const float x : q) nan = nan || std::isnan(x);
  auto size = options.n_routed_experts / options.n_group;
  if (options.n_group > 1) {
    std::vector<float> group_scores;
    for (std::int64_t g = 0; g < options.n_group; ++g) {
      const std::vector<float> group(q.begin() + g * size, q.begin() + (g + 1) * size);
      auto two = largest(group, 2);
      group_scores.push_back(group[two[0]] + group[two[1]]);
    }
    std::vector<bool> kept(options.n_group, false);
    for (auto g : largest(group_scores, options.topk_group)) kept[g] = true;
    for (std::int64_t i = 0; i < options.n_routed_experts; ++i) {
      if (!kept[i / size]) q[i] = -std::numeric_limits<float>::infinity();
    }
  }
  auto chosen = options.num_experts_per_tok, candidates = options.topk_group * size;
  auto order = largest(q, std::min(chosen + 1, candidates));
  Choice result{{order.begin(), order.begin() + chosen}};
  if (!nan && chosen < candidates) {
    const float last = q[order[chosen - 1]], next = q[order[chosen]];
    result.gap = last == next ? 0.0f : last - next;
  }
  return result;
}

inline Row scores(const Row& logits, const MoeOptions& options) {
  Row result;
  double total = 0.0;
  for (const double z : logits) {
    result.push_back(options.scoring == MoeOptions::Scoring::Sigmoid ? 1.0 / (1.0 + std::exp(-z)) : std::exp(z));
    total += result.back();
  }
  if (options.scoring == MoeOptions::Scoring::Softmax) {
    for (double& s : result) s /= total;
  }
  return result;
}

/// Scores that sum to 1.
inline Row probabilities(const Row& logits, const MoeOptions& options) {
  auto result = scores(logits, options);
  double total = 0.0;
  for (const double s : result) total += s;
  for (double& s : result) s /= total;
  return result;
}

/// x [tokens, hidden] times weight [experts, hidden] transposed.
inline Rows logits(const Rows& x, const Rows& weight) {
  Rows result;
  for (auto& token : x) {
    auto& row = result.emplace_back();
    for (auto& expert : weight) {
      double z = 0.0;
      for (std::size_t h = 0; h < token.size(); ++h) z += token[h] * expert[h];
      row.push_back(z);
    }
  }
  return result;
}

inline Row weights(const Row& logits, const Ids& ids, const MoeOptions& options) {
  auto all = scores(logits, options);
  Row result;
  double total = 0.0;
  for (auto i : ids) total += all[i];
  for (auto i : ids) {
    result.push_back(all[i] / (options.norm_topk_prob ? total : 1.0) * options.routed_scaling_factor);
  }
  return result;
}

inline double switch_loss(const Rows& logits, const Ids& counts, const MoeOptions& options) {
  auto tokens = static_cast<double>(logits.size());
  double loss = 0.0;
  for (std::int64_t i = 0; i < options.n_routed_experts; ++i) {
    double mean = 0.0;
    for (auto& row : logits) mean += probabilities(row, options)[i] / tokens;
    loss += static_cast<double>(counts[i]) / (tokens * options.num_experts_per_tok) * mean;
  }
  return static_cast<double>(options.n_routed_experts) * loss;
}

inline double sequence_loss(const Rows& logits, std::int64_t seq_len, const MoeOptions& options) {
  double loss = 0.0;
  for (std::size_t begin = 0; begin < logits.size(); begin += seq_len) {
    Row load(options.n_routed_experts, 0.0), mean(options.n_routed_experts, 0.0);
    for (auto t = begin; t < begin + seq_len; ++t) {
      auto s = scores(logits[t], options), p = probabilities(logits[t], options);
      for (auto i : largest(s, options.num_experts_per_tok)) load[i] += 1.0;
      for (std::size_t i = 0; i < p.size(); ++i) mean[i] += p[i] / seq_len;
    }
    for (std::size_t i = 0; i < load.size(); ++i) {
      const double pairs = static_cast<double>(options.num_experts_per_tok) * seq_len;
      loss += options.n_routed_experts * load[i] / pairs * mean[i];
    }
  }
  return loss;
}

inline double z_loss(const Rows& logits) {
  double loss = 0.0;
  for (auto& row : logits) {
    double total = 0.0;
    for (const double z : row) total += std::exp(z);
    loss += std::log(total) * std::log(total);
  }
  return loss;
}

/// d f / d values[i][j], by central differences.
template <class Function>
double slope(Rows& values, std::size_t i, std::size_t j, Function f) {
  constexpr double kStep = 1e-5;
  const double at = values[i][j];
  values[i][j] = at + kStep;
  const double above = f();
  values[i][j] = at - kStep;
  const double below = f();
  values[i][j] = at;
  return (above - below) / (2.0 * kStep);
}

}  // namespace meshard::reference
