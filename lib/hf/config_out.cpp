#include "hf/config_out.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "base/error.h"

namespace meshard {

namespace {

using Json = nlohmann::ordered_json;
using Reasons = std::vector<std::string>;

void refuse_unless(Reasons& reasons, bool fine, std::string reason) {
  if (!fine) reasons.push_back(std::move(reason));
}

Reasons refusals(const ModelOptions& model) {
  Reasons reasons;
  auto& decoder = model.decoder;
  auto& family = info_of(model.family);
  if (!family.output_bias) {
    refuse_unless(reasons, !decoder.attention_output_bias,
                  "attention_bias: its o_proj never has one, this model's has");
  } else {
    refuse_unless(reasons, decoder.attention_bias == decoder.attention_output_bias,
                  "attention_bias: its q, k, v and o have one or none of them, this model's do not agree");
  }
  refuse_unless(reasons, family.partial_rotary || decoder.partial_rotary_factor == 1.0,
                fmt::format("partial_rotary_factor {}: it rotates whole heads", decoder.partial_rotary_factor));
  if (model.family == ModelFamily::Glm4Moe || !model.moe) return reasons;
  auto& moe = *model.moe;
  refuse_unless(reasons, decoder.use_qk_norm, "use_qk_norm false: its queries and keys are always normalised");
  refuse_unless(reasons, moe.n_shared_experts == 0,
                fmt::format("n_shared_experts {}: it has no shared experts", moe.n_shared_experts));
  refuse_unless(reasons, moe.routed_scaling_factor == 1.0,
                fmt::format("routed_scaling_factor {}: it does not scale its experts", moe.routed_scaling_factor));
  refuse_unless(reasons, moe.n_group == 1, fmt::format("n_group {}: it has no groups of experts", moe.n_group));
  return reasons;
}

Json common_fields(const ModelOptions& model, at::ScalarType dtype) {
  auto& decoder = model.decoder;
  auto& family = info_of(model.family);
  // Token ids are null because the classes' defaults (Llama: 1 and 2) would be tokens of some other vocabulary.
  return {{"architectures", {family.model_class}},
          {"model_type", family.model_type},
          {"vocab_size", decoder.vocab_size},
          {"hidden_size", decoder.hidden_size},
          {"intermediate_size", decoder.intermediate_size},
          {"num_hidden_layers", decoder.num_hidden_layers},
          {"num_attention_heads", decoder.num_attention_heads},
          {"num_key_value_heads", decoder.num_key_value_heads},
          {"head_dim", decoder.head_dim},
          {"max_position_embeddings", decoder.max_position_embeddings},
          {"rope_theta", decoder.rope_theta},
          {"partial_rotary_factor", decoder.partial_rotary_factor},
          {"rms_norm_eps", decoder.rms_norm_eps},
          {"hidden_act", "silu"},
          {"attention_bias", decoder.attention_bias},
          {"initializer_range", decoder.initializer_range},
          {"tie_word_embeddings", decoder.tie_word_embeddings},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"dtype", dtype == at::kBFloat16 ? "bfloat16" : "float32"}};
}

void add_glm_fields(Json& json, const ModelOptions& model) {
  auto& moe = *model.moe;
  json.update({{"use_qk_norm", model.decoder.use_qk_norm},
               {"first_k_dense_replace", model.first_k_dense_replace},
               {"n_routed_experts", moe.n_routed_experts},
               {"num_experts_per_tok", moe.num_experts_per_tok},
               {"n_shared_experts", moe.n_shared_experts},
               {"moe_intermediate_size", moe.moe_intermediate_size},
               {"n_group", moe.n_group},
               {"topk_group", moe.topk_group},
               {"norm_topk_prob", moe.norm_topk_prob},
               {"routed_scaling_factor", moe.routed_scaling_factor}});
}

void add_qwen_fields(Json& json, const ModelOptions& model) {
  auto& moe = *model.moe;
  std::vector<std::int64_t> dense(static_cast<std::size_t>(model.first_k_dense_replace));
  std::iota(dense.begin(), dense.end(), 0);
  json.update({{"num_experts", moe.n_routed_experts},
               {"num_experts_per_tok", moe.num_experts_per_tok},
               {"moe_intermediate_size", moe.moe_intermediate_size},
               {"decoder_sparse_step", 1},
               {"mlp_only_layers", dense},
               {"norm_topk_prob", moe.norm_topk_prob}});
}

}  // namespace

HfConfig hf_config(const ModelOptions& model, at::ScalarType dtype) {
  auto& family = info_of(model.family);
  if (auto reasons = refusals(model); !reasons.empty()) {
    throw ConfigError(
        fmt::format("no Hugging Face class computes what this model does; the nearest is {}, which differs in\n  {}\n"
                    "Export models that agree with it, or use the checkpoint itself",
                    family.model_class, fmt::join(reasons, "\n  ")));
  }
  HfConfig result{common_fields(model, dtype), {}};
  if (model.family == ModelFamily::Glm4Moe) add_glm_fields(result.json, model);
  if (model.family == ModelFamily::Qwen3Moe) add_qwen_fields(result.json, model);
  if (model.moe && model.moe->capacity_factor) {
    result.warnings.push_back(
        fmt::format("the model was trained with capacity_factor {}; {} drops no token, so its results differ where "
                    "training dropped",
                    *model.moe->capacity_factor, family.model_class));
  }
  return result;
}

}  // namespace meshard
