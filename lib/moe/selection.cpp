#include "moe/selection.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/any.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <ranges>

#include "nn/kernel_dispatch.h"

namespace meshard {

namespace {

// Scores are compared as integers in their order, -0.0 as 0.0: radix sorts of floats differ in NaN and -0.0.
constexpr auto kNanKey = std::numeric_limits<std::int32_t>::max();
constexpr auto kMaskedKey = std::numeric_limits<std::int32_t>::min();  // below -inf
constexpr auto kNoGap = std::numeric_limits<float>::infinity();

std::int32_t order_key(float x) {
  if (std::isnan(x)) return kNanKey;
  auto bits = std::bit_cast<std::int32_t>(x + 0.0f);
  return bits < 0 ? bits ^ kNanKey : bits;
}

float value_of_key(std::int32_t key) {
  return std::bit_cast<float>(key < 0 ? key ^ kNanKey : key);
}

at::Tensor order_keys(const at::Tensor& x) {
  auto bits = (x + 0.0).view(at::kInt);
  return at::where(bits.lt(0), bits.bitwise_xor(kNanKey), bits).masked_fill(at::isnan(x), kNanKey);
}

/// The indices of the `count` largest keys of each row, falling, of equal keys the lower index first: by keys that are
/// unique, for a partial sort that keeps no order of equals.
at::Tensor largest(const at::Tensor& keys, std::int64_t count) {
  constexpr std::int64_t kIndexMask = 0xffffffff;
  auto index = at::arange(keys.size(-1), keys.options().dtype(at::kLong));
  auto unique = at::bitwise_left_shift(keys.to(at::kLong), 32) + (kIndexMask - index);
  auto top = std::get<0>(at::topk(unique, count, -1, /*largest=*/true, /*sorted=*/true));
  return kIndexMask - top.bitwise_and(kIndexMask);
}

std::int64_t candidates_of(const MoeOptions& options) {
  return options.topk_group * (options.n_routed_experts / options.n_group);
}

/// The largest keys offered, and their indices; of equal keys the one offered first.
class TopList {
 public:
  explicit TopList(std::int64_t capacity) : keys_(capacity), indices_(capacity) {}

  void clear() { size_ = 0; }
  void offer(std::int32_t key, std::int64_t index) {
    if (size_ == keys_.size() && keys_[size_ - 1] >= key) return;
    auto at = size_ < keys_.size() ? size_++ : size_ - 1;
    for (; at > 0 && keys_[at - 1] < key; --at) {
      keys_[at] = keys_[at - 1];
      indices_[at] = indices_[at - 1];
    }
    keys_[at] = key;
    indices_[at] = index;
  }
  float value(std::int64_t i) const { return value_of_key(keys_[i]); }
  std::int64_t index(std::int64_t i) const { return indices_[i]; }

 private:
  std::vector<std::int32_t> keys_;
  std::vector<std::int64_t> indices_;
  std::size_t size_ = 0;
};

/// Chooses for one token after the other; holds the room that this takes.
class TokenChooser {
 public:
  TokenChooser(const MoeOptions& options, const float* bias)
      : options_(options),
        bias_(bias),
        wanted_(std::min(options.num_experts_per_tok + 1, candidates_of(options))),
        keys_(options.n_routed_experts),
        best_(wanted_),
        groups_(options.topk_group),
        pair_(2),
        group_kept_(options.n_group) {}

  /// Writes the K ids; returns the gap to the best that was not chosen.
  float choose(const float* scores, std::int64_t* ids) {
    auto experts = options_.n_routed_experts, chosen = options_.num_experts_per_tok;
    bool nan = false;
    for (std::int64_t i = 0; i < experts; ++i) {
      keys_[i] = order_key(bias_ ? scores[i] + bias_[i] : scores[i]);
      nan |= keys_[i] == kNanKey;
    }
    if (options_.n_group > 1) mask_groups();
    best_.clear();
    for (std::int64_t i = 0; i < experts; ++i) best_.offer(keys_[i], i);
    for (std::int64_t k = 0; k < chosen; ++k) ids[k] = best_.index(k);
    if (nan || wanted_ == chosen) return kNoGap;
    const float last = best_.value(chosen - 1), next = best_.value(chosen);
    return last == next ? 0.0f : last - next;
  }

 private:
  void mask_groups() {
    auto size = options_.n_routed_experts / options_.n_group;
    groups_.clear();
    for (std::int64_t group = 0; group < options_.n_group; ++group) {
      pair_.clear();
      for (auto i = group * size; i < (group + 1) * size; ++i) pair_.offer(keys_[i], i);
      groups_.offer(order_key(pair_.value(0) + pair_.value(1)), group);
    }
    std::ranges::fill(group_kept_, false);
    for (std::int64_t i = 0; i < options_.topk_group; ++i) group_kept_[groups_.index(i)] = true;
    for (std::int64_t i = 0; i < options_.n_routed_experts; ++i) {
      if (!group_kept_[i / size]) keys_[i] = kMaskedKey;
    }
  }

  const MoeOptions& options_;
  const float* bias_;
  std::int64_t wanted_;
  std::vector<std::int32_t> keys_;
  TopList best_, groups_, pair_;
  std::vector<char> group_kept_;
};

at::Tensor mask_groups_aten(const at::Tensor& keys, const at::Tensor& biased, const MoeOptions& options) {
  auto tokens = keys.size(0), groups = options.n_group, size = options.n_routed_experts / groups;
  auto grouped = keys.view({tokens, groups, size});
  auto first_two = largest(grouped, 2);
  auto group_scores = at::sum(at::gather(biased.view({tokens, groups, size}), 2, first_two), 2);
  auto masked = at::empty({tokens, groups}, keys.options().dtype(at::kBool)).fill_(true);
  masked.scatter_(1, largest(order_keys(group_scores), options.topk_group), false);
  return grouped.masked_fill(masked.unsqueeze(2), kMaskedKey).view({tokens, groups * size});
}

}  // namespace

Selection select_experts_cpu(const at::Tensor& scores, const at::Tensor& bias, const MoeOptions& options) {
  auto tokens = scores.size(0), experts = scores.size(1), chosen = options.num_experts_per_tok;
  auto rows = scores.contiguous();
  auto ids = at::empty({tokens, chosen}, at::kLong);
  auto* pscores = rows.const_data_ptr<float>();
  auto* pbias = data_or_null<float>(bias);
  auto* pids = ids.mutable_data_ptr<std::int64_t>();
  auto grain = std::max<std::int64_t>(1, kParallelGrain / experts);
  auto some = [&](std::int64_t begin, std::int64_t end, float gap) {
    TokenChooser chooser(options, pbias);
    for (auto t = begin; t < end; ++t) gap = std::min(gap, chooser.choose(pscores + t * experts, pids + t * chosen));
    return gap;
  };
  auto smaller = [](float a, float b) { return std::min(a, b); };
  return {ids, at::scalar_tensor(at::parallel_reduce(0, tokens, grain, kNoGap, some, smaller), at::kFloat)};
}

Selection select_experts_aten(const at::Tensor& scores, const at::Tensor& bias, const MoeOptions& options) {
  auto chosen = options.num_experts_per_tok;
  auto biased = (bias.defined() ? scores + bias : scores).contiguous();
  auto keys = order_keys(biased);
  if (options.n_group > 1) keys = mask_groups_aten(keys, biased, options);
  const bool no_choice = chosen == candidates_of(options) || scores.size(0) == 0;
  auto order = largest(keys, no_choice ? chosen : chosen + 1);
  Selection result{order.narrow(1, 0, chosen).contiguous(), at::full({}, kNoGap, scores.options())};
  if (no_choice) return result;
  auto ends = at::gather(biased, 1, order.narrow(1, chosen - 1, 2));
  auto last = ends.select(1, 0), next = ends.select(1, 1);
  auto gaps = at::where(last.eq(next), 0.0, last - next).masked_fill(at::any(at::isnan(biased), 1), kNoGap);
  result.gap = gaps.min();
  return result;
}

std::int64_t expert_capacity(std::int64_t tokens, const MoeOptions& options) {
  auto pairs = static_cast<double>(tokens * options.num_experts_per_tok);
  auto share = std::min(*options.capacity_factor * pairs / static_cast<double>(options.n_routed_experts), pairs);
  // Less a hair: 1.1 * 100 / 10 is 11.000000000000002.
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(share * (1.0 - 1e-12))));
}

std::int64_t drop_over_capacity(at::Tensor& ids, const at::Tensor& weights, std::int64_t experts,
                                std::int64_t capacity) {
  auto on_host = weights.to(at::kCPU).contiguous();
  auto* pweights = on_host.const_data_ptr<float>();
  auto* pids = ids.mutable_data_ptr<std::int64_t>();
  std::vector<std::vector<std::int64_t>> pairs_of(experts);
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    if (pids[i] != kDroppedPair) pairs_of[pids[i]].push_back(i);
  }
  std::int64_t dropped = 0;
  for (auto& pairs : pairs_of) {
    std::ranges::stable_sort(pairs, std::greater{}, [&](auto i) { return order_key(pweights[i]); });
    for (auto i : pairs | std::views::drop(capacity)) {
      pids[i] = kDroppedPair;
      ++dropped;
    }
  }
  return dropped;
}

at::Tensor pairs_of_experts(const at::Tensor& ids, std::int64_t experts) {
  auto pairs = ids.reshape({-1});
  auto counts = at::zeros({experts + 1}, ids.options());  // dropped pairs are counted last
  counts.scatter_add_(0, at::where(pairs.lt(0), experts, pairs), at::ones_like(pairs));
  return counts.narrow(0, 0, experts);
}

at::Tensor drop_over_capacity_aten(at::Tensor& ids, const at::Tensor& weights, std::int64_t experts,
                                   std::int64_t capacity) {
  auto pairs = ids.view({-1});
  auto expert = at::where(pairs.lt(0), experts, pairs);
  // By falling weight, then, keeping that order, by expert.
  auto keys = order_keys(weights.detach().reshape({-1}));
  auto by_weight = std::get<1>(at::sort(keys, /*stable=*/true, /*dim=*/0, /*descending=*/true));
  auto [sorted, by_expert] = at::sort(expert.index_select(0, by_weight), /*stable=*/true, 0, /*descending=*/false);
  auto order = by_weight.index_select(0, by_expert);
  auto counts = pairs_of_experts(ids, experts);
  auto first = at::cat({counts.cumsum(0) - counts, at::full({1}, pairs.numel(), ids.options())});
  auto over = (at::arange(pairs.numel(), ids.options()) - first.index_select(0, sorted)).ge(capacity);
  pairs.scatter_(0, order, at::where(over, kDroppedPair, pairs.index_select(0, order)));
  return over.sum();
}

}  // namespace meshard
