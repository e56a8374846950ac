#pragma once
// The language model once more, slow and obvious: plain ATen operations and autograd, nothing from lib/nn but the
// config.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>

#include <cmath>
#include <map>
#include <string>

#include "nn/decoder.h"

namespace reference {

using at::Tensor;

struct Model {
  meshard::DecoderOptions config;
  std::map<std::string, Tensor> weights;

  Tensor weight(const std::string& name) const { return weights.at(name); }
  Tensor bias(const std::string& name) const { return weights.contains(name) ? weights.at(name) : Tensor(); }

  Tensor norm(const Tensor& x, const std::string& name) const {
    return x * at::rsqrt((x * x).mean(-1, true) + config.rms_norm_eps) * weight(name + ".weight");
  }

  Tensor linear(const Tensor& x, const std::string& name) const {
    auto y = at::matmul(x, weight(name + ".weight").t());
    auto b = bias(name + ".bias");
    return b.defined() ? y + b : y;
  }

  Tensor turn(const Tensor& x) const {
    auto dim = static_cast<std::int64_t>(config.head_dim * config.partial_rotary_factor), half = dim / 2;
    auto theta = at::pow(at::Scalar(config.rope_theta), at::arange(0, dim, 2, at::kFloat) / dim).reciprocal();
    auto angle = at::arange(x.size(1), at::kFloat).unsqueeze(1) * theta;
    auto both = at::cat({angle, angle}, 1).unsqueeze(1);
    auto head = x.narrow(-1, 0, dim), rest = x.narrow(-1, dim, x.size(-1) - dim);
    auto swapped = at::cat({-head.narrow(-1, half, half), head.narrow(-1, 0, half)}, -1);
    return at::cat({head * both.cos() + swapped * both.sin(), rest}, -1);
  }

  Tensor attention(const Tensor& x, const std::string& name) const {
    auto batch = x.size(0), seq = x.size(1), group = config.num_attention_heads / config.num_key_value_heads;
    auto split = [&](const std::string& which) {
      return linear(x, name + "." + which).view({batch, seq, -1, config.head_dim});
    };
    auto q = split("q_proj"), k = split("k_proj"), v = split("v_proj");
    if (config.use_qk_norm) q = norm(q, name + ".q_norm"), k = norm(k, name + ".k_norm");
    q = turn(q).transpose(1, 2);
    k = turn(k).transpose(1, 2).repeat_interleave(group, 1);
    v = v.transpose(1, 2).repeat_interleave(group, 1);
    auto future = at::triu(at::ones({seq, seq}), 1).to(at::kBool);
    auto scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(config.head_dim));
    auto mixed = at::matmul(at::softmax(scores.masked_fill(future, -INFINITY), -1), v);
    return linear(mixed.transpose(1, 2).reshape({batch, seq, -1}), name + ".o_proj");
  }

  Tensor mlp(const Tensor& x, const std::string& name) const {
    return linear(at::silu(linear(x, name + ".gate_proj")) * linear(x, name + ".up_proj"), name + ".down_proj");
  }

  Tensor logits(const Tensor& ids) const {
    auto x = weight("model.embed_tokens.weight").index_select(0, ids.view({-1})).view({ids.size(0), ids.size(1), -1});
    for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
      auto layer = "model.layers." + std::to_string(i);
      x = x + attention(norm(x, layer + ".input_layernorm"), layer + ".self_attn");
      x = x + mlp(norm(x, layer + ".post_attention_layernorm"), layer + ".mlp");
    }
    return linear(norm(x, "model.norm"), "lm_head");
  }

  Tensor loss(const Tensor& ids, const Tensor& targets, double scale) const {
    auto log_p = at::log_softmax(logits(ids), -1).view({-1, config.vocab_size});
    auto valid = targets.view({-1}).ne(-100);
    auto column = targets.view({-1}).clamp_min(0).unsqueeze(1);
    return -(log_p.gather(1, column).squeeze(1) * valid).sum() * scale;
  }
};

}  // namespace reference
