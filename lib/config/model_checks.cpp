#include <fmt/format.h>

#include <cstdint>

#include "config/checks.h"

namespace meshard {
namespace {

void fill_attention(Config& config, Report& report) {
  auto& m = config.model;
  const bool sized = report.clean({"model.hidden_size", "model.num_attention_heads"});
  if (!report.given("model.num_key_value_heads")) m.num_key_value_heads = m.num_attention_heads;
  if (!report.given("model.head_dim") && sized) {
    if (m.hidden_size % m.num_attention_heads != 0) {
      report.at("model.hidden_size",
                fmt::format("{} is not a multiple of num_attention_heads {}; change one, or give model.head_dim",
                            m.hidden_size, m.num_attention_heads));
    }
    m.head_dim = m.hidden_size / m.num_attention_heads;
  }
  if (!report.given("model.max_position_embeddings")) m.max_position_embeddings = config.train.seq_len;
}

void check_attention(const Config& config, Report& report) {
  auto& m = config.model;
  if (report.clean({"model.num_attention_heads", "model.num_key_value_heads"}) &&
      m.num_attention_heads % m.num_key_value_heads != 0) {
    report.at("model.num_key_value_heads",
              fmt::format("{} does not divide the {} attention heads; use {}", m.num_key_value_heads,
                          m.num_attention_heads, divisors({m.num_attention_heads}, m.num_key_value_heads)));
  }
  if (!report.clean({"model.hidden_size", "model.num_attention_heads", "model.head_dim"})) return;
  if (m.head_dim % 2 != 0) {
    // Without the key the division made it odd: then the fault lies with the sizes.
    auto where = report.given("model.head_dim") ? "model.head_dim" : "model.num_attention_heads";
    auto what = report.given("model.head_dim") ? fmt::format("{} is odd", m.head_dim)
                                               : fmt::format("head_dim = hidden_size {} / {} heads = {} is odd",
                                                             m.hidden_size, m.num_attention_heads, m.head_dim);
    report.at(where, what + "; rotary embeddings turn pairs: expected an even head_dim");
    return;
  }
  if (!report.clean({"model.partial_rotary_factor"})) return;
  auto rotated = static_cast<std::int64_t>(static_cast<double>(m.head_dim) * m.partial_rotary_factor);
  if (rotated <= 0 || rotated % 2 != 0) {
    report.at("model.partial_rotary_factor",
              fmt::format("int(head_dim {} x {}) = {} dimensions would be rotated; expected an even number > 0",
                          m.head_dim, m.partial_rotary_factor, rotated));
  }
}

void check_groups(const MoeConfig& moe, Report& report) {
  if (!report.clean({"model.moe.n_routed_experts", "model.moe.n_group", "model.moe.topk_group",
                     "model.moe.num_experts_per_tok"})) {
    return;
  }
  auto experts = moe.n_routed_experts, groups = moe.n_group, kept = moe.topk_group;
  if (experts % groups != 0) {
    report.at("model.moe.n_group", fmt::format("{} groups do not divide the {} routed experts; use {}", groups, experts,
                                               divisors({experts}, groups)));
    return;
  }
  if (groups > 1 && experts / groups < 2) {
    report.at("model.moe.n_group",
              fmt::format("{} groups of {} routed experts have {} each; a group's score is the sum of its best two: "
                          "expected n_group <= {}",
                          groups, experts, experts / groups, experts / 2));
    return;
  }
  if (kept > groups) {
    report.at("model.moe.topk_group",
              fmt::format("{} groups cannot be kept of {}; expected topk_group <= n_group", kept, groups));
  } else if (kept * (experts / groups) < moe.num_experts_per_tok) {
    report.at("model.moe.num_experts_per_tok",
              fmt::format("a token cannot go to {} experts where {} can be chosen (topk_group {} x {} experts of a "
                          "group); expected at most {}",
                          moe.num_experts_per_tok, kept * (experts / groups), kept, experts / groups,
                          kept * (experts / groups)));
  }
}

void check_scoring(MoeConfig& moe, Report& report) {
  if (!report.clean({"model.moe.scoring_func"})) return;
  const bool sigmoid = moe.scoring_func == MoeConfig::Scoring::Sigmoid;
  if (!report.given("model.moe.expert_bias.enabled")) moe.expert_bias.enabled = sigmoid;
  if (sigmoid) return;
  if (report.clean({"model.moe.n_group"}) && moe.n_group > 1) {
    report.at("model.moe.n_group",
              fmt::format("{} groups need sigmoid scores; use n_group: 1 with scoring_func softmax", moe.n_group));
  }
  if (report.clean({"model.moe.expert_bias.enabled"}) && moe.expert_bias.enabled) {
    report.at("model.moe.expert_bias.enabled",
              "an expert bias needs sigmoid scores; use false with scoring_func softmax, or scoring_func: sigmoid");
  }
}

void check_moe(Config& config, Report& report) {
  auto& moe = *config.model.moe;
  check_groups(moe, report);
  check_scoring(moe, report);
  if (report.clean({"model.moe.first_k_dense_replace", "model.num_hidden_layers"}) &&
      moe.first_k_dense_replace >= config.model.num_hidden_layers) {
    report.at("model.moe.first_k_dense_replace",
              fmt::format("{} leaves no layer of the {} with experts; expected at most {}", moe.first_k_dense_replace,
                          config.model.num_hidden_layers, config.model.num_hidden_layers - 1));
  }
  if (report.clean({"model.moe.aux_loss.type", "model.moe.aux_loss.coeff"}) &&
      moe.aux_loss.type == AuxLossConfig::Type::None && moe.aux_loss.coeff > 0) {
    report.at(
        "model.moe.aux_loss.coeff",
        fmt::format("{} has no effect with type none; choose type switch or sequence, or 0.0", moe.aux_loss.coeff));
  }
}

// Beyond what any cluster holds, and far below where 64-bit sizes overflow.
void check_size(const ModelConfig& m, Report& report) {
  constexpr double kMostParameters = 1e15;
  if (!report.clean({"model"})) return;
  auto hidden = static_cast<double>(m.hidden_size), heads = static_cast<double>(m.num_attention_heads);
  auto layer =
      hidden * static_cast<double>(m.head_dim) * heads * 4 + 3 * hidden * static_cast<double>(m.intermediate_size);
  if (m.moe) {
    auto experts = static_cast<double>(m.moe->n_routed_experts + m.moe->n_shared_experts);
    layer += 3 * hidden * static_cast<double>(m.moe->moe_intermediate_size) * experts;
  }
  auto parameters = layer * static_cast<double>(m.num_hidden_layers) + 2 * hidden * static_cast<double>(m.vocab_size);
  if (parameters <= kMostParameters) return;
  report.at("model.hidden_size", fmt::format("these sizes make about {:.1e} parameters; expected at most {:.0e}",
                                             parameters, kMostParameters));
}

}  // namespace

void check_model(Config& config, Report& report) {
  fill_attention(config, report);
  check_attention(config, report);
  if (config.model.moe) check_moe(config, report);
  check_size(config.model, report);
}

}  // namespace meshard
