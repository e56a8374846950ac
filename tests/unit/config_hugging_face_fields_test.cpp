// Which fields of a Hugging Face config.json are taken: all that transformers writes and publishers publish, and no
// field of which it is unknown what it does.
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "config/hugging_face_table.h"

using namespace meshard;
using nlohmann::json;

namespace {

// What save_pretrained() of transformers 4.57.6 can write for any model (to_json_string(use_diff=False)).
auto kOf4 = json::parse(R"({"return_dict": true, "output_hidden_states": false, "torchscript": false,
  "dtype": "float32", "pruned_heads": {}, "tie_word_embeddings": false, "chunk_size_feed_forward": 0,
  "is_encoder_decoder": false, "is_decoder": false, "cross_attention_hidden_size": null, "add_cross_attention": false,
  "tie_encoder_decoder": false, "finetuning_task": null, "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
  "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "task_specific_params": null, "problem_type": null,
  "tokenizer_class": null, "prefix": null, "bos_token_id": 1, "pad_token_id": null, "eos_token_id": [2, 3],
  "sep_token_id": null, "decoder_start_token_id": null, "max_length": 20, "min_length": 0, "do_sample": false,
  "early_stopping": false, "num_beams": 1, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "typical_p": 1.0,
  "repetition_penalty": 1.0, "length_penalty": 1.0, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
  "bad_words_ids": null, "num_return_sequences": 1, "output_scores": false, "return_dict_in_generate": false,
  "forced_bos_token_id": null, "forced_eos_token_id": null, "remove_invalid_values": false,
  "exponential_decay_length_penalty": null, "suppress_tokens": null, "begin_suppress_tokens": null,
  "num_beam_groups": 1, "diversity_penalty": 0.0, "_name_or_path": "", "transformers_version": "4.57.6",
  "tf_legacy_loss": false, "use_bfloat16": false, "output_attentions": false, "use_cache": true,
  "hidden_act": "silu", "initializer_range": 0.02, "attention_bias": false, "attention_dropout": 0.0,
  "rope_theta": 10000.0, "rope_scaling": null})");

// The same of 5.18.0.
auto kOf5 = json::parse(R"({"transformers_version": "5.18.0", "output_hidden_states": false, "return_dict": true,
  "dtype": "bfloat16", "chunk_size_feed_forward": 0, "is_encoder_decoder": false,
  "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "problem_type": null,
  "use_cache": true, "tie_word_embeddings": false, "pad_token_id": null, "bos_token_id": null, "eos_token_id": 2,
  "_name_or_path": "", "output_attentions": false, "hidden_act": "silu", "initializer_range": 0.02,
  "attention_bias": false, "attention_dropout": 0.0,
  "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}})");

json merged(json into, const json& from) {
  into.update(from);
  return into;
}

json sizes(const char* type, const char* model_class) {
  return merged(json::parse(R"({"vocab_size": 264, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 32})"),
                {{"model_type", type}, {"architectures", {model_class}}});
}

const json kFull = {"full_attention", "full_attention", "full_attention"};
const json kWindows = {{"use_sliding_window", false}, {"sliding_window", nullptr}};
const json kExperts = {{"moe_intermediate_size", 16}, {"num_experts_per_tok", 2}};

// Every family, as a file that says no more than it must.
json llama() {
  return merged(sizes("llama", "LlamaForCausalLM"), {{"rms_norm_eps", 1e-6}});
}
json qwen3() {
  return merged(sizes("qwen3", "Qwen3ForCausalLM"), {{"rms_norm_eps", 1e-6}});
}
json qwen3_moe() {
  return merged(merged(sizes("qwen3_moe", "Qwen3MoeForCausalLM"), kExperts),
                {{"rms_norm_eps", 1e-6}, {"num_experts", 8}, {"norm_topk_prob", true}});
}
json glm4_moe() {
  return merged(merged(sizes("glm4_moe", "Glm4MoeForCausalLM"), kExperts),
                {{"rms_norm_eps", 1e-5}, {"n_routed_experts", 8}});
}

struct HfFile {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("meshard-hf-fields-" + std::to_string(getpid()) + ".json");
  ~HfFile() { std::filesystem::remove(path); }

  ModelConfig read(const json& config) {
    std::ofstream(path) << config;
    return parse_config("schema: 1\nmodel: {from_hf: \"" + path.string() +
                            "\"}\ndata: {type: synthetic}\ntrain: {steps: 1, global_batch_size: 1, seq_len: 8}\n",
                        "run.yaml", {}, 1)
        .model;
  }

  std::string refusal(const json& config) {
    try {
      read(config);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }

  void same(const json& plain, const json& full) {
    auto model = read(plain);
    auto message = refusal(full);
    BOOST_TEST_REQUIRE(message == "accepted", message);
    BOOST_TEST((read(full) == model), full);
  }
};

}  // namespace

// Catches: a field that transformers writes by itself and that is refused, or taken for something else.
BOOST_FIXTURE_TEST_CASE(takes_all_that_transformers_writes, HfFile) {
  for (auto& common : {kOf4, kOf5}) {
    same(llama(), merged(merged(common, llama()), {{"mlp_bias", false}, {"pretraining_tp", 1}}));
    same(qwen3(),
         merged(merged(common, qwen3()), merged(kWindows, {{"max_window_layers", 28}, {"layer_types", kFull}})));
    const json router = {{"decoder_sparse_step", 1},
                         {"output_router_logits", false},
                         {"router_aux_loss_coef", 0.001},
                         {"mlp_only_layers", json::array()}};
    same(qwen3_moe(), merged(merged(merged(common, qwen3_moe()), kWindows), router));
    same(glm4_moe(), merged(merged(common, glm4_moe()), {{"partial_rotary_factor", 0.5},
                                                         {"n_shared_experts", 1},
                                                         {"routed_scaling_factor", 1.0},
                                                         {"n_group", 1},
                                                         {"topk_group", 1},
                                                         {"first_k_dense_replace", 1},
                                                         {"norm_topk_prob", true},
                                                         {"use_qk_norm", false},
                                                         {"num_nextn_predict_layers", 1}}));
  }
  // The newer name of the count of experts.
  auto newer = qwen3_moe();
  newer.erase("num_experts");
  same(qwen3_moe(), merged(newer, {{"num_local_experts", 8}}));
}

// Catches: a published model that is refused. The fields are those of the files; sizes are small here.
BOOST_FIXTURE_TEST_CASE(takes_published_models, HfFile) {
  auto without_head_dim = llama();
  without_head_dim.erase("head_dim");
  same(llama(), merged(without_head_dim, json::parse(R"({"_name_or_path": "meta-llama/Llama-2-7b-hf", "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02, "max_length": 4096, "pad_token_id": 0,
    "pretraining_tp": 1, "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0", "use_cache": true})")));  // Llama 2
  same(merged(llama(), {{"rope_theta", 500000.0}}),
       merged(llama(), json::parse(R"({"attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "hidden_act": "silu", "initializer_range": 0.02, "pretraining_tp": 1, "rope_scaling": null,
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0.dev0", "use_cache": true})")));  // Llama 3
  same(llama(), merged(llama(), json::parse(R"({"attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu",
    "is_llama_config": true, "rope_interleaved": false, "rope_scaling": null, "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}})")));  // SmolLM 2
  same(llama(), merged(llama(), {{"max_sequence_length", 2048}, {"_flash_attn_2_enabled", true}}));  // Llama 1
  auto qwen = json::parse(R"({"attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "hidden_act": "silu", "initializer_range": 0.02, "max_window_layers": 36,
    "rope_scaling": null, "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false})");
  same(qwen3(), merged(qwen3(), qwen));  // Qwen3
  const json router = {{"decoder_sparse_step", 1},
                       {"mlp_only_layers", json::array()},
                       {"output_router_logits", false},
                       {"router_aux_loss_coef", 0.001}};
  same(qwen3_moe(), merged(merged(qwen3_moe(), qwen), router));  // Qwen3 30B-A3B, 235B-A22B
  same(qwen3_moe(),
       merged(merged(merged(qwen3_moe(), qwen), router),
              {{"qkv_bias", false}, {"shared_expert_intermediate_size", 0}, {"use_qk_norm", true}}));  // Coder
  same(merged(glm4_moe(), {{"attention_bias", true}, {"use_qk_norm", true}, {"routed_scaling_factor", 2.5}}),
       merged(glm4_moe(), json::parse(R"({"attention_bias": true, "attention_dropout": 0.0, "pad_token_id": 151329,
    "eos_token_id": [151329, 151336, 151338], "hidden_act": "silu", "partial_rotary_factor": 0.5,
    "initializer_range": 0.02, "norm_topk_prob": true, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "rope_scaling": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.54.0", "use_cache": true,
    "use_qk_norm": true})")));  // GLM 4.5
}

// Catches: a field that a class of transformers has a default for and that is refused, or gets a default of ours or of
// another class. The numbers are those of the classes in 4.57.6 and 5.24.0, written here as their files have them.
BOOST_FIXTURE_TEST_CASE(absent_fields_are_the_defaults_of_the_class, HfFile) {
  auto common = json::parse(R"({"rope_theta": 10000.0, "attention_bias": false, "tie_word_embeddings": false,
    "initializer_range": 0.02, "hidden_act": "silu", "attention_dropout": 0.0})");
  const std::vector<json> classes = {
      json::parse(R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "mlp_bias": false})"),
      json::parse(R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "use_sliding_window": false})"),
      json::parse(R"({"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "use_sliding_window": false, "decoder_sparse_step": 1,
    "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128, "norm_topk_prob": false,
    "mlp_only_layers": []})"),
      json::parse(R"({"model_type": "glm4_moe", "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944,
    "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5,
    "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128,
    "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": true,
    "use_qk_norm": false})")};
  for (auto& own : classes) {
    auto full = merged(common, own);
    auto model = read(full);
    for (auto& [name, value] : full.items()) {
      if (name == "model_type") continue;
      // 4096 / 96 = 42: half of it is odd, and no model of the class.
      if (name == "head_dim" && own["model_type"] == "glm4_moe") continue;
      auto without = full;
      without.erase(name);
      auto message = refusal(without);
      BOOST_TEST(message == "accepted", own["model_type"] << " without " << name << ": " << message);
      if (message == "accepted") BOOST_TEST((read(without) == model), own["model_type"] << " without " << name);
    }
  }
  // A count of experts under a name that the class does not read is not passed over for the default.
  auto other = glm4_moe();
  other.erase("n_routed_experts");
  BOOST_TEST(refusal(merged(other, {{"num_local_experts", 8}})) != "accepted");
}

// Catches: a field that nobody here knows and that is passed over, however it is called: what it does is lost.
BOOST_FIXTURE_TEST_CASE(refuses_unknown_fields_by_name, HfFile) {
  for (auto& plain : {llama(), qwen3(), qwen3_moe(), glm4_moe()}) {
    for (auto* name :
         {"attn_logit_softcapping", "is_casual", "logits_scaling", "use_bidirectional_attention", "", "RMS_NORM_EPS"}) {
      for (auto& value : {json(1.0), json(false), json(nullptr)}) {
        auto message = refusal(merged(plain, {{name, value}}));
        BOOST_TEST(message.starts_with("config error: 1 problem in run.yaml"), message);
        auto said = std::string("`") + name + ": " + value.dump() + "` is not known of a " +
                    plain["model_type"].get<std::string>();
        BOOST_TEST(message.find(said) != std::string::npos, message);
      }
    }
  }
  // A field of one family is none of another.
  BOOST_TEST(refusal(merged(llama(), {{"n_shared_experts", 0}})).find("is not known of a llama") != std::string::npos);
  BOOST_TEST(refusal(merged(glm4_moe(), {{"mlp_only_layers", {0}}})).find("is not known of a glm4_moe") !=
             std::string::npos);
}

// Catches: a null that is taken for "absent" where the class of transformers fails on it, or computes something else.
BOOST_FIXTURE_TEST_CASE(refuses_nulls_that_no_class_takes, HfFile) {
  auto refused = [&](const json& plain, const char* name) {
    BOOST_TEST(refusal(merged(plain, {{name, nullptr}})) != "accepted", plain["model_type"] << " " << name);
  };
  for (auto& plain : {llama(), qwen3(), qwen3_moe(), glm4_moe()}) {
    for (auto* name :
         {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "max_position_embeddings", "rms_norm_eps", "rope_theta", "hidden_act", "initializer_range", "attention_bias",
          "attention_dropout", "tie_word_embeddings", "is_causal", "partial_rotary_factor"}) {
      refused(plain, name);
    }
  }
  refused(llama(), "mlp_bias");
  for (auto* name : {"head_dim", "use_sliding_window"}) refused(qwen3(), name);
  for (auto* name : {"head_dim", "num_key_value_heads", "use_sliding_window", "num_experts", "num_experts_per_tok",
                     "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step"}) {
    refused(qwen3_moe(), name);
  }
  for (auto* name : {"head_dim", "num_key_value_heads", "n_routed_experts", "num_experts_per_tok", "n_shared_experts",
                     "moe_intermediate_size", "norm_topk_prob", "n_group", "topk_group", "first_k_dense_replace",
                     "routed_scaling_factor", "use_qk_norm"}) {
    refused(glm4_moe(), name);
  }
}

// Catches: weights of a Hugging Face folder in a model that computes something else with them: any key of the model
// that its config.json decides and this run has otherwise. And a difference where there is none: what no config.json
// says.
BOOST_FIXTURE_TEST_CASE(says_what_differs_from_a_file, HfFile) {
  const std::vector<std::pair<std::string, std::string>> others = {{"vocab_size", "300"},
                                                                   {"hidden_size", "128"},
                                                                   {"num_hidden_layers", "4"},
                                                                   {"num_attention_heads", "8"},
                                                                   {"num_key_value_heads", "4"},
                                                                   {"head_dim", "32"},
                                                                   {"intermediate_size", "64"},
                                                                   {"rope_theta", "5.0"},
                                                                   {"rms_norm_eps", "0.5"},
                                                                   {"use_qk_norm", "true"},
                                                                   {"attention_bias", "true"},
                                                                   {"partial_rotary_factor", "1.0"},
                                                                   {"tie_word_embeddings", "true"},
                                                                   {"moe.n_routed_experts", "4"},
                                                                   {"moe.num_experts_per_tok", "3"},
                                                                   {"moe.n_shared_experts", "2"},
                                                                   {"moe.moe_intermediate_size", "8"},
                                                                   {"moe.first_k_dense_replace", "0"},
                                                                   {"moe.scoring_func", "softmax"},
                                                                   {"moe.n_group", "4"},
                                                                   {"moe.topk_group", "2"},
                                                                   {"moe.norm_topk_prob", "false"},
                                                                   {"moe.routed_scaling_factor", "2.0"}};
  auto file = merged(glm4_moe(), {{"n_group", 2}});
  read(file);
  auto run = [](const std::vector<std::string>& overrides) {
    return parse_config(R"(schema: 1
model: {vocab_size: 264, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 3, num_attention_heads: 4,
  num_key_value_heads: 2, head_dim: 16, max_position_embeddings: 32, partial_rotary_factor: 0.5,
  moe: {n_routed_experts: 8, moe_intermediate_size: 16, n_shared_experts: 1, first_k_dense_replace: 1, n_group: 2}}
data: {type: synthetic}
train: {steps: 1, global_batch_size: 1, seq_len: 8}
)",
                        "run.yaml", overrides, 1);
  };
  auto changes = [&](const std::vector<std::string>& overrides) {
    return changes_from_hugging_face(path, run(overrides));
  };
  BOOST_TEST(changes({}).empty());
  std::set<std::string> tried = {"model.from_hf", "model.moe", "model.moe.expert_bias.enabled"};
  for (auto& [name, value] : others) {
    auto key = "model." + name;
    std::vector<std::string> overrides = {key + "=" + value};
    if (name == "moe.scoring_func") overrides.push_back("model.moe.n_group=1");  // softmax has no groups
    auto found = changes(overrides);
    BOOST_TEST(found.size() == overrides.size(), key);
    auto change = std::ranges::find(found, key, &ConfigChange::key);
    BOOST_TEST_REQUIRE((change != found.end()), key);
    BOOST_TEST(change->other_model, key);
    BOOST_TEST(change->to == value, key);
    BOOST_TEST(change->from != value, key);
    tried.insert(key);
  }
  for (auto& change : config_changes(Config{}, run({}))) {
    if (change.other_model) BOOST_TEST(tried.contains(change.key), change.key << " is not tried here");
  }

  BOOST_TEST(changes({"model.moe.expert_bias.enabled=false", "model.moe.expert_bias.update_rate=0.5",
                      "model.moe.aux_loss={type: switch, coeff: 0.5}", "model.moe.z_loss_coeff=0.5"})
                 .empty());
  auto longer = changes({"model.max_position_embeddings=64"});  // the length of a table
  BOOST_TEST_REQUIRE(longer.size() == 1u);
  BOOST_TEST(!longer[0].other_model);
  BOOST_TEST(longer[0].from == "32");
  read(llama());
  auto dense = changes({});
  auto experts = std::ranges::find(dense, "model.moe.n_routed_experts", &ConfigChange::key);
  BOOST_TEST_REQUIRE((experts != dense.end()));
  BOOST_TEST(experts->from == "absent");

  std::ofstream(path) << merged(llama(), {{"hidden_act", "gelu"}, {"vocab_size", nullptr}});
  BOOST_CHECK_EXCEPTION(changes({}), ConfigError, [&](const ConfigError& error) {
    return std::string(error.what()) ==
           "config error: 2 problems in " + path.string() + "\n  " + path.filename().string() +
               "  `hidden_act: \"gelu\"` cannot be honoured; expected \"silu\" or no such "
               "field\n  " +
               path.filename().string() + "  model.vocab_size: has no value; expected an integer >= 1";
  });
}

// Catches: a field that stands in the table twice, or becomes a key that there is none of: it would be lost.
BOOST_AUTO_TEST_CASE(the_table_is_sound) {
  std::set<std::string> keys;
  for (auto& doc : config_keys()) keys.insert(doc.key);
  for (auto& family : hugging_face_families()) {
    std::set<std::string_view> names, taken;
    for (auto& field : family.fields) {
      BOOST_TEST(names.insert(field.name).second, family.info().model_type << " " << field.name);
      BOOST_TEST((field.use == HuggingFaceField::Use::Fixed) == !field.accepted.empty(), field.name);
      if (field.key.empty()) continue;
      BOOST_TEST(keys.contains("model." + std::string(field.key)), field.key);
      BOOST_TEST(taken.insert(field.key).second, family.info().model_type << " " << field.key);
    }
  }
}
