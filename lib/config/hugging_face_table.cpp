#include "config/hugging_face_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace meshard {
namespace {

using nlohmann::json;
using Use = HuggingFaceField::Use;
using Fields = std::vector<HuggingFaceField>;

// A field of our own name and meaning.
HuggingFaceField becomes(std::string_view key, json default_value = nullptr) {
  return {key.substr(key.rfind('.') + 1), Use::Honoured, key, std::move(default_value)};
}

HuggingFaceField honoured(std::string_view name) {
  return {name, Use::Honoured};
}

HuggingFaceField fixed(std::string_view name, std::vector<json> accepted, std::string_view key = {}) {
  return {name, Use::Fixed, key, nullptr, std::move(accepted)};
}

void add(Fields& to, Fields more) {
  std::ranges::move(more, std::back_inserter(to));
}

Fields model_fields() {
  return {
      honoured("model_type"),
      honoured("architectures"),
      honoured("transformers_version"),  // which of two spellings of the rotary embedding holds
      honoured("head_dim"),
      becomes("rope_theta", 10000.0),
      honoured("rope_scaling"),
      honoured("rope_parameters"),
      becomes("attention_bias", false),
      becomes("tie_word_embeddings", false),
      becomes("initializer_range", 0.02),
      honoured("sliding_window"),
      honoured("use_sliding_window"),
      honoured("layer_types"),
      honoured("mlp_layer_types"),
      fixed("hidden_act", {"silu"}),
      fixed("is_causal", {true}),
      fixed("attention_dropout", {0}),
      fixed("quantization_config", {nullptr}),
      fixed("per_layer_config", {nullptr, json::object()}),
      fixed("pruned_heads", {nullptr, json::object()}),
      fixed("is_encoder_decoder", {false}),
      fixed("add_cross_attention", {false}),
      fixed("cross_attention_hidden_size", {nullptr}),
      fixed("auto_map", {nullptr}),  // code of the file's own
      // Unknown to these classes of transformers, but in files that are published.
      fixed("rope_interleaved", {false, nullptr}),
      fixed("use_mrope", {false, nullptr}),
      fixed("qkv_bias", {false, nullptr}),
  };
}

// What a class takes where its file has none. save_pretrained() writes them all.
struct Sizes {
  int vocabulary, hidden, intermediate, layers, heads;
};

Fields size_fields(const Sizes& sizes) {
  return {becomes("vocab_size", sizes.vocabulary), becomes("hidden_size", sizes.hidden),
          becomes("intermediate_size", sizes.intermediate), becomes("num_hidden_layers", sizes.layers),
          becomes("num_attention_heads", sizes.heads)};
}

Fields harmless_fields() {
  Fields fields;
  for (auto* name :
       {// Storage, and how transformers runs.
        "dtype", "torch_dtype", "_name_or_path", "_commit_hash", "use_cache", "pretraining_tp", "torchscript",
        "use_bfloat16", "tf_legacy_loss", "chunk_size_feed_forward", "is_decoder", "attn_implementation",
        "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
        "experts_implementation", "_experts_implementation_internal", "return_dict", "output_hidden_states",
        "output_attentions", "tie_last_hidden_states", "unsloth_fixed", "unsloth_version", "is_llama_config",
        "transformers.js_config", "_flash_attn_2_enabled", "model_max_length", "max_sequence_length",
        // Tokens. That of padding gets no gradient in transformers; here it is a token like any other.
        "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id", "tokenizer_class",
        "prefix",
        // Heads for other tasks.
        "finetuning_task", "id2label", "label2id", "num_labels", "problem_type", "task_specific_params",
        "classifier_dropout", "tie_encoder_decoder",
        // Generation.
        "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
        "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
        "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
        "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"}) {
    fields.push_back({name});
  }
  return fields;
}

Fields qwen_fields() {
  return {becomes("max_position_embeddings", 32768),
          becomes("rms_norm_eps", 1e-6),
          fixed("partial_rotary_factor", {1}, "partial_rotary_factor"),
          fixed("use_qk_norm", {true, nullptr}, "use_qk_norm"),
          fixed("mlp_bias", {false, nullptr}),
          {"max_window_layers"}};  // of windows, which are refused
}

// Fields that say where experts lie, and those of routers and attentions that neither class has.
Fields expert_fields() {
  return {honoured("num_experts"),
          honoured("num_local_experts"),
          becomes("moe.num_experts_per_tok", 8),
          fixed("moe_layer_freq", {1, nullptr}),
          fixed("kv_lora_rank", {nullptr}),
          fixed("q_lora_rank", {nullptr}),
          {"output_router_logits"},
          {"router_aux_loss_coef"}};  // a loss: model.moe.aux_loss is ours
}

HuggingFaceFamily llama() {
  HuggingFaceFamily family{ModelFamily::Llama, size_fields({32000, 4096, 11008, 32, 32})};
  add(family.fields,
      {honoured("num_key_value_heads"), becomes("max_position_embeddings", 2048), becomes("rms_norm_eps", 1e-6),
       fixed("partial_rotary_factor", {1}, "partial_rotary_factor"),
       fixed("use_qk_norm", {false, nullptr}, "use_qk_norm"), fixed("mlp_bias", {false})});
  return family;
}

HuggingFaceFamily qwen3() {
  HuggingFaceFamily family{ModelFamily::Qwen3, qwen_fields()};
  add(family.fields, size_fields({151936, 4096, 22016, 32, 32}));
  add(family.fields, {honoured("num_key_value_heads")});
  return family;
}

HuggingFaceFamily qwen3_moe() {
  HuggingFaceFamily family{ModelFamily::Qwen3Moe, qwen_fields()};
  add(family.fields, size_fields({151936, 2048, 6144, 24, 32}));
  add(family.fields, expert_fields());
  add(family.fields,
      {becomes("num_key_value_heads", 4), becomes("moe.moe_intermediate_size", 768),
       becomes("moe.norm_topk_prob", false), honoured("n_routed_experts"), honoured("first_k_dense_replace"),
       honoured("mlp_only_layers"), fixed("decoder_sparse_step", {1}),
       fixed("scoring_func", {"softmax", nullptr}, "moe.scoring_func"), fixed("topk_method", {"greedy", nullptr}),
       fixed("n_group", {1, nullptr}, "moe.n_group"), fixed("topk_group", {1, nullptr}, "moe.topk_group"),
       fixed("n_shared_experts", {0, nullptr}, "moe.n_shared_experts"),
       fixed("shared_expert_intermediate_size", {0, nullptr}),
       fixed("routed_scaling_factor", {1, nullptr}, "moe.routed_scaling_factor")});
  return family;
}

HuggingFaceFamily glm4_moe() {
  HuggingFaceFamily family{ModelFamily::Glm4Moe, expert_fields()};
  add(family.fields, size_fields({151552, 4096, 10944, 46, 96}));
  add(family.fields,
      {becomes("num_key_value_heads", 8), becomes("moe.moe_intermediate_size", 1408),
       becomes("max_position_embeddings", 131072), becomes("rms_norm_eps", 1e-5), becomes("partial_rotary_factor", 0.5),
       becomes("use_qk_norm", false), fixed("mlp_bias", {false, nullptr}),
       fixed("scoring_func", {"sigmoid", nullptr}, "moe.scoring_func"), fixed("topk_method", {"noaux_tc", nullptr}),
       becomes("moe.n_routed_experts"), becomes("moe.first_k_dense_replace", 1), becomes("moe.n_group", 1),
       becomes("moe.topk_group", 1), becomes("moe.n_shared_experts", 1), becomes("moe.norm_topk_prob", true),
       becomes("moe.routed_scaling_factor", 1.0),
       honoured("num_nextn_predict_layers")});  // which layers an import of weights leaves out
  return family;
}

}  // namespace

const HuggingFaceField* HuggingFaceFamily::find(std::string_view name) const {
  auto found = std::ranges::find(fields, name, &HuggingFaceField::name);
  return found == fields.end() ? nullptr : &*found;
}

const std::vector<HuggingFaceFamily>& hugging_face_families() {
  static auto families = [] {
    std::vector<HuggingFaceFamily> all = {llama(), qwen3(), qwen3_moe(), glm4_moe()};
    for (auto& family : all) {
      add(family.fields, model_fields());
      add(family.fields, harmless_fields());
    }
    return all;
  }();
  return families;
}

}  // namespace meshard
