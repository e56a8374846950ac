// A Hugging Face config.json as the source of the model section.
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"

using namespace meshard;
using nlohmann::json;

namespace {

json sizes(const std::string& model_type) {
  return {{"model_type", model_type}, {"vocab_size", 264},
          {"hidden_size", 64},        {"num_hidden_layers", 3},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"intermediate_size", 128}, {"max_position_embeddings", 32},
          {"hidden_act", "silu"},     {"torch_dtype", "bfloat16"},
          {"attention_dropout", 0.0}, {"bos_token_id", 1}};
}

json experts(json config, const char* count) {
  config.update({{count, 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 16}});
  return config;
}

struct HfFile {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("meshard-hf-" + std::to_string(getpid()) + ".json");
  ~HfFile() { std::filesystem::remove(path); }

  Config read(const json& config, const std::vector<std::string>& overrides = {}) {
    return read_text(config.dump(), overrides);
  }
  Config read_text(const std::string& text, const std::vector<std::string>& overrides = {}) {
    std::ofstream(path) << text;
    return parse_config("schema: 1\nmodel: {from_hf: \"" + path.string() +
                            "\"}\ndata: {type: synthetic}\n"
                            "train: {steps: 1, global_batch_size: 4, seq_len: 8}\n",
                        "run.yaml", overrides, 4);
  }
  std::string text_refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
    try {
      read_text(text, overrides);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }
  std::string refusal(const json& config) { return text_refusal(config.dump()); }

  static json model_of(const std::string& type) {
    auto config = sizes(type);
    if (type == "qwen3_moe") return experts(config, "num_experts");
    return type == "glm4_moe" ? experts(config, "n_routed_experts") : config;
  }

  void refused(const char* type, const json& fields, const std::string& what) {
    auto config = model_of(type);
    config.update(fields);
    auto message = refusal(config);
    BOOST_TEST(message.starts_with("config error: 1 problem in run.yaml"), message);
    BOOST_TEST(message.find("run.yaml:2:18  model.from_hf: ") != std::string::npos, message);
    BOOST_TEST(message.find(what) != std::string::npos, message << "\nlacks " << what);
    BOOST_TEST(message.find("(read from " + path.string()) != std::string::npos, message);
  }
};

}  // namespace

// Catches: a field that is dropped, or a default other than the one of that model class.
BOOST_FIXTURE_TEST_CASE(llama, HfFile) {
  auto config = sizes("llama");
  config["rope_theta"] = 500000.0;
  config["rope_scaling"] = nullptr;
  config["tie_word_embeddings"] = true;
  auto model = read(config).model;
  BOOST_TEST(model.hidden_size == 64);
  BOOST_TEST(model.num_key_value_heads == 2);
  BOOST_TEST(model.head_dim == 16);
  BOOST_TEST(model.max_position_embeddings == 32);
  BOOST_TEST(model.rope_theta == 500000.0);
  BOOST_TEST(model.rms_norm_eps == 1e-6);
  BOOST_TEST(model.tie_word_embeddings);
  BOOST_TEST(!model.use_qk_norm);
  BOOST_TEST(!model.moe.has_value());
  // The newer spelling of rotary parameters.
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_theta", 1234.5}, {"rope_type", "default"}};
  BOOST_TEST(read(config).model.rope_theta == 1234.5);
}

// Catches: keys of the file that beat what the user wrote.
BOOST_FIXTURE_TEST_CASE(other_keys_override, HfFile) {
  auto config = read(sizes("llama"), {"model.num_hidden_layers=1", "model.rms_norm_eps=1e-4"});
  BOOST_TEST(config.model.num_hidden_layers == 1);
  BOOST_TEST(config.model.rms_norm_eps == 1e-4);
  auto moe = read(experts(sizes("glm4_moe"), "n_routed_experts"), {"model.moe.n_routed_experts=4"}).model.moe;
  BOOST_TEST(moe->n_routed_experts == 4);
  BOOST_TEST(moe->moe_intermediate_size == 16);
}

// Catches: Qwen without its QK norm or with GLM's router.
BOOST_FIXTURE_TEST_CASE(qwen3, HfFile) {
  auto dense = sizes("qwen3");
  dense["sliding_window"] = 4096;
  dense["use_sliding_window"] = false;
  BOOST_TEST(read(dense).model.use_qk_norm);
  BOOST_TEST(read(dense).model.head_dim == 128);
  auto config = experts(sizes("qwen3_moe"), "num_experts");
  config["mlp_only_layers"] = {0, 1};
  auto model = read(config).model;
  BOOST_TEST(model.use_qk_norm);
  BOOST_TEST((model.moe->scoring_func == MoeConfig::Scoring::Softmax));
  BOOST_TEST(!model.moe->norm_topk_prob);
  BOOST_TEST(!model.moe->expert_bias.enabled);
  BOOST_TEST(model.moe->n_routed_experts == 8);
  BOOST_TEST(model.moe->n_shared_experts == 0);
  BOOST_TEST(model.moe->first_k_dense_replace == 2);
}

// Catches: GLM with a full rotation, or without its shared expert and bias.
BOOST_FIXTURE_TEST_CASE(glm4_moe, HfFile) {
  auto model = read(experts(sizes("glm4_moe"), "n_routed_experts")).model;
  BOOST_TEST(model.partial_rotary_factor == 0.5);
  BOOST_TEST(model.rms_norm_eps == 1e-5);
  BOOST_TEST(model.moe->expert_bias.enabled);
  BOOST_TEST(model.moe->norm_topk_prob);
  BOOST_TEST(model.moe->n_shared_experts == 1);
  BOOST_TEST(model.moe->first_k_dense_replace == 1);
}

// Catches: a feature that would be ignored in silence; the model would not be the one of the file.
BOOST_FIXTURE_TEST_CASE(refuses_by_name, HfFile) {
  refused("llama", {{"model_type", "gpt2"}}, "model_type `gpt2` is not known; expected llama, qwen3,");
  refused("llama", {{"hidden_act", "gelu"}}, "`hidden_act: \"gelu\"` cannot be honoured; expected \"silu\"");
  refused("llama", {{"mlp_bias", true}}, "`mlp_bias: true` cannot be honoured; expected false");
  refused("llama", {{"is_causal", false}}, "`is_causal: false` cannot be honoured; expected true");
  refused("qwen3", {{"is_causal", false}}, "`is_causal: false` cannot be honoured; expected true");
  refused("qwen3_moe", {{"is_causal", nullptr}}, "`is_causal: null` cannot be honoured; expected true");
  refused("glm4_moe", {{"is_causal", false}}, "`is_causal: false` cannot be honoured; expected true");
  refused("llama", {{"attention_dropout", 0.1}}, "`attention_dropout: 0.1` cannot be honoured; expected 0");
  refused("llama", {{"quantization_config", {{"bits", 4}}}}, "`quantization_config: {\"bits\":4}`");
  refused("llama", {{"use_qk_norm", true}}, "`use_qk_norm: true` cannot be honoured; expected false");
  refused("qwen3", {{"use_qk_norm", false}}, "`use_qk_norm: false` cannot be honoured; expected true");
  refused("llama", {{"architectures", {"MistralForCausalLM"}}}, "expected [\"LlamaForCausalLM\"]");
  refused("qwen3", {{"architectures", {"Qwen3MoeForCausalLM"}}}, "expected [\"Qwen3ForCausalLM\"]");
  refused("qwen3_moe", {{"architectures", {"Qwen3ForCausalLM"}}}, "expected [\"Qwen3MoeForCausalLM\"]");
  refused("glm4_moe", {{"architectures", {"Glm4MoeForCausalLM", "X"}}}, "expected [\"Glm4MoeForCausalLM\"]");
  refused("llama", {{"architectures", "LlamaForCausalLM"}}, "expected [\"LlamaForCausalLM\"]");
}

// Catches: scaled, partial or contradictory rotary embeddings that become the plain one.
BOOST_FIXTURE_TEST_CASE(refuses_other_rotary_embeddings, HfFile) {
  const std::string scaling = "expected null, or nothing but the type default";
  refused("llama", {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}}, scaling);
  refused("llama", {{"rope_scaling", {{"rope_type", "default"}, {"factor", 8.0}}}}, scaling);
  refused("llama", {{"rope_scaling", {{"factor", 8.0}}}}, scaling);
  refused("llama", {{"rope_scaling", {{"rope_theta", 5.0}}}}, scaling);
  refused("llama", {{"rope_scaling", false}}, scaling);
  refused("llama", {{"rope_scaling", json::object()}}, scaling);
  refused("llama", {{"rope_scaling", {{"rope_type", nullptr}}}}, scaling);
  const std::string plain = "expected null, or the type default with nothing but rope_theta";
  refused("llama", {{"rope_parameters", {{"rope_type", "yarn"}}}}, plain);
  refused("llama", {{"rope_parameters", {{"rope_type", nullptr}}}}, plain);
  refused("llama", {{"rope_parameters", {{"rope_theta", nullptr}}}}, plain);
  refused("llama", {{"rope_parameters", {{"rope_type", "default"}, {"factor", 2}}}}, plain);
  refused("llama", {{"rope_parameters", {{"full_attention", {{"rope_theta", 5.0}}}}}}, plain);
  refused("llama", {{"rope_parameters", {{"rope_theta", 5.0}}}, {"rope_scaling", {{"type", "default"}}}},
          "expected either it or rope_parameters");
  refused("llama", {{"rope_theta", 5.0}, {"rope_parameters", {{"rope_theta", 7.0}}}},
          "`rope_theta: 5.0` cannot be honoured; expected 7.0 as in rope_parameters");
  refused("glm4_moe", {{"partial_rotary_factor", 0.5}, {"rope_parameters", {{"partial_rotary_factor", 1.0}}}},
          "`partial_rotary_factor: 0.5` cannot be honoured; expected 1.0 as in rope_parameters");
  refused("qwen3", {{"partial_rotary_factor", 0.5}}, "`partial_rotary_factor: 0.5` cannot be honoured; expected 1");
  refused("qwen3_moe", {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, "expected partial_rotary_factor 1");
}

// Catches: an inner rotary parameter that a file of transformers 5 says holds, refused for the outer one, which that
// release writes beside it whatever the model computes; and an inner one that release 4 would not read, taken.
BOOST_FIXTURE_TEST_CASE(the_version_says_which_rotary_parameters_hold, HfFile) {
  auto config = model_of("glm4_moe");
  config.update({{"partial_rotary_factor", 0.5},
                 {"rope_theta", 5.0},
                 {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.0}, {"partial_rotary_factor", 1.0}}}});
  for (auto* version : {"5.18.0", "5.0.0.dev0", "12.0"}) {
    config["transformers_version"] = version;
    BOOST_TEST(read(config).model.partial_rotary_factor == 1.0);
    BOOST_TEST(read(config).model.rope_theta == 7.0);
  }
  for (auto& version : {json("4.57.6"), json(), json(5), json("new")}) {
    config["transformers_version"] = version;
    BOOST_TEST(refusal(config).find("a transformers_version of 5") != std::string::npos, version);
  }
}

// Catches: a window that is turned on in another way, or by default, or for some layers; a list that fits no layers.
BOOST_FIXTURE_TEST_CASE(refuses_windows, HfFile) {
  refused("llama", {{"sliding_window", 128}}, "`use_sliding_window` (absent) with `sliding_window: 128`");
  for (auto& on : {json(true), json(1), json("true")}) {
    auto use = "`use_sliding_window: " + on.dump() + "` with ";
    refused("qwen3", {{"sliding_window", 128}, {"use_sliding_window", on}}, use + "`sliding_window: 128`");
    refused("qwen3_moe", {{"use_sliding_window", on}}, use + "`sliding_window` (absent)");
    refused("glm4_moe", {{"sliding_window", 128}, {"use_sliding_window", on}}, use + "`sliding_window: 128`");
  }
  const std::string length = "expected a list of num_hidden_layers = 3 texts";
  refused("llama", {{"layer_types", "full_attention"}}, length);
  refused("qwen3", {{"layer_types", {{"0", "full_attention"}}}}, length);
  refused("qwen3", {{"layer_types", {"full_attention", "full_attention"}}}, length);
  refused("qwen3_moe", {{"layer_types", {"full_attention", "sliding_attention", "full_attention"}}},
          "`layer_types` has \"sliding_attention\" for layer 1, which cannot be honoured; expected \"full_attention\"");
  refused("glm4_moe", {{"layer_types", {"full_attention", "full_attention", 1}}}, "`layer_types` has 1 for layer 2");
}

// Catches: dense layers or numbers of experts that are told in two ways, of which the other one was meant.
BOOST_FIXTURE_TEST_CASE(refuses_contradictions, HfFile) {
  refused("qwen3_moe", {{"mlp_only_layers", {1}}}, "`mlp_only_layers: [1]` cannot be honoured; expected the first");
  refused("qwen3_moe", {{"mlp_only_layers", json::object()}}, "`mlp_only_layers: {}` cannot be honoured");
  refused("qwen3_moe", {{"mlp_only_layers", {0}}, {"first_k_dense_replace", 2}},
          "`first_k_dense_replace: 2` cannot be honoured; expected 1");
  refused("qwen3_moe", {{"mlp_only_layers", {0}}, {"mlp_layer_types", {"sparse", "sparse", "sparse"}}},
          "`mlp_layer_types` has \"sparse\" for layer 0, which cannot be honoured; expected \"dense\"");
  refused("glm4_moe", {{"first_k_dense_replace", 2}, {"mlp_layer_types", {"dense", "sparse", "sparse"}}},
          "`mlp_layer_types` has \"sparse\" for layer 1");
  refused("glm4_moe", {{"mlp_layer_types", {"dense", "sparse", "dense"}}},
          "`mlp_layer_types` has \"dense\" for layer 2");
  refused("glm4_moe", {{"mlp_layer_types", {"dense", "sparse"}}}, "expected a list of num_hidden_layers = 3 texts");
  refused("llama", {{"mlp_layer_types", {"dense", "dense", "sparse"}}}, "`mlp_layer_types` has \"sparse\" for layer 2");
  refused("qwen3_moe", {{"num_local_experts", 4}},
          "`num_local_experts: 4` cannot be honoured; expected as many as `num_experts: 8` has");
  refused("glm4_moe", {{"num_local_experts", 4}}, "`num_local_experts: 4` cannot be honoured; expected as many");
}

// Catches: a router or attention of another class, which the file's own class does not compute.
BOOST_FIXTURE_TEST_CASE(refuses_fields_of_other_classes, HfFile) {
  auto only = [&](const char* type, const char* field, const json& given, const char* expected) {
    refused(type, {{field, given}},
            std::string("`") + field + ": " + given.dump() + "` cannot be honoured; expected " + expected);
  };
  only("qwen3_moe", "decoder_sparse_step", 2, "1 or");
  only("qwen3_moe", "scoring_func", "sigmoid", "\"softmax\" or");
  only("qwen3_moe", "topk_method", "noaux_tc", "\"greedy\" or");
  only("qwen3_moe", "n_group", 2, "1 or");
  only("qwen3_moe", "topk_group", 2, "1 or");
  only("qwen3_moe", "n_shared_experts", 1, "0 or");
  only("qwen3_moe", "shared_expert_intermediate_size", 16, "0 or");
  only("qwen3_moe", "routed_scaling_factor", 2.5, "1 or");
  only("qwen3_moe", "first_k_dense_replace", 1, "0 or");
  only("qwen3_moe", "use_qk_norm", false, "true or");
  only("glm4_moe", "scoring_func", "softmax", "\"sigmoid\" or");
  only("glm4_moe", "topk_method", "greedy", "\"noaux_tc\" or");
  only("glm4_moe", "moe_layer_freq", 2, "1 or");
  only("glm4_moe", "kv_lora_rank", 512, "null");
  only("glm4_moe", "q_lora_rank", 1536, "null");
}

// Catches: a field that is refused though it says what is done anyway.
BOOST_FIXTURE_TEST_CASE(accepts_what_agrees, HfFile) {
  auto accepted = [&](const char* type, const json& fields) {
    auto config = model_of(type);
    config.update(fields);
    BOOST_TEST(refusal(config) == "accepted", type << " " << fields);
  };
  const json full = {"full_attention", "full_attention", "full_attention"};
  accepted("llama", {{"architectures", {"LlamaForCausalLM"}}, {"layer_types", full}, {"rope_scaling", nullptr}});
  accepted("llama", {{"mlp_layer_types", {"dense", "dense", "dense"}}, {"use_qk_norm", false}, {"head_dim", nullptr}});
  accepted("llama", {{"rope_theta", 5}, {"rope_parameters", {{"rope_theta", 5.0}, {"partial_rotary_factor", 1.0}}}});
  accepted("qwen3", {{"use_sliding_window", true}, {"sliding_window", nullptr}, {"rope_parameters", json::object()}});
  accepted("qwen3_moe", {{"architectures", {"Qwen3MoeForCausalLM"}},
                         {"mlp_only_layers", {0, 1}},
                         {"mlp_layer_types", {"dense", "dense", "sparse"}},
                         {"first_k_dense_replace", 2},
                         {"num_local_experts", 8},
                         {"scoring_func", "softmax"},
                         {"n_shared_experts", 0},
                         {"routed_scaling_factor", 1.0},
                         {"use_qk_norm", true}});
  accepted("glm4_moe", {{"architectures", {"Glm4MoeForCausalLM"}},
                        {"mlp_layer_types", {"dense", "sparse", "sparse"}},
                        {"topk_method", "noaux_tc"},
                        {"moe_layer_freq", 1},
                        {"kv_lora_rank", nullptr},
                        {"sliding_window", 128},
                        {"use_sliding_window", false}});
  accepted("glm4_moe", {{"topk_method", nullptr}, {"rope_parameters", {{"partial_rotary_factor", 1.0}}}});
}

// Catches: a default of ours, or of another class, where the file leaves a field out; a null that passes for absent.
BOOST_FIXTURE_TEST_CASE(defaults_are_those_of_the_class, HfFile) {
  auto without = [&](const char* type) {
    auto config = model_of(type);
    for (auto* name : {"num_key_value_heads", "max_position_embeddings", "num_experts_per_tok"}) config.erase(name);
    return config;
  };
  auto llama = read(without("llama")).model;
  BOOST_TEST(llama.num_key_value_heads == 4);
  BOOST_TEST(llama.max_position_embeddings == 2048);
  auto qwen = without("qwen3");
  qwen["num_attention_heads"] = 64;
  BOOST_TEST(read(qwen).model.num_key_value_heads == 32);
  BOOST_TEST(read(qwen).model.max_position_embeddings == 32768);
  qwen["num_key_value_heads"] = nullptr;
  BOOST_TEST(read(qwen).model.num_key_value_heads == 64);
  for (auto* type : {"qwen3_moe", "glm4_moe"}) {
    auto config = without(type);
    auto model = read(config, {"model.num_key_value_heads=2"}).model;
    BOOST_TEST(model.num_key_value_heads == 2);
    BOOST_TEST(model.head_dim == 16);
    BOOST_TEST(model.max_position_embeddings == (std::string(type) == "glm4_moe" ? 131072 : 32768));
    BOOST_TEST(model.moe->num_experts_per_tok == 8);
    config["num_key_value_heads"] = 2;
    config["norm_topk_prob"] = nullptr;
    BOOST_TEST(refusal(config).find("model.moe.norm_topk_prob: has no value") != std::string::npos);
  }
}

// Catches: one broken file that is told as twenty missing keys; a key of which the parser drops one value; the user's
// own mistakes beside a broken file, which are passed over.
BOOST_FIXTURE_TEST_CASE(a_broken_file_is_one_problem, HfFile) {
  auto only = [&](const std::string& text, const std::string& what) {
    auto message = text_refusal(text, {"model.rms_norm_eps=0.5"});
    BOOST_TEST(message.starts_with("config error: 1 problem in run.yaml"), message);
    BOOST_TEST(message.find("model.from_hf: ") != std::string::npos, message);
    BOOST_TEST(message.find(what) != std::string::npos, message);
    BOOST_TEST(message.find(path.string()) != std::string::npos, message);
  };
  only("{", "expected a Hugging Face config.json");
  only("", "expected a Hugging Face config.json");
  only("[]", "expected a JSON object");
  only("{}", "model_type `(none)` is not known; expected llama");
  only("{\"model_type\": 3}", "model_type `(not a text)` is not known");
  only("{\"model_type\": \"gpt2\"}", "model_type `gpt2` is not known");
  only("{\"model_type\": \"llama\", \"vocab_size\": 264, \"vocab_size\": 300}",
       "the key `vocab_size` stands twice in one object; expected it once");
  only("{\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"default\", \"type\": \"yarn\"}}",
       "the key `type` stands twice");
  auto two = text_refusal("{", {"model.rms_norm_eps=wide", "parallel.expert=2"});
  BOOST_TEST(two.starts_with("config error: 2 problems in run.yaml"), two);
  BOOST_TEST(two.find("model.rms_norm_eps: ") != std::string::npos, two);
  // The same key in two objects is none twice.
  auto config = model_of("llama");
  config["rope_theta"] = 5.0;
  config["rope_parameters"] = {{"rope_theta", 5.0}};
  BOOST_TEST(refusal(config) == "accepted");
}

// Catches: a value of the file that escapes the checks of the key it becomes, or a broken file that ends in a crash.
BOOST_FIXTURE_TEST_CASE(checks_the_values, HfFile) {
  auto config = sizes("llama");
  config["hidden_size"] = "wide";
  auto message = refusal(config);
  BOOST_TEST(message.find("run.yaml:2:18  model.hidden_size: the text \"wide\"") != std::string::npos, message);
  BOOST_CHECK_THROW(read_text("{"), ConfigError);
  BOOST_CHECK_THROW(read_text("[]"), ConfigError);
  BOOST_CHECK_THROW(read_text("{\"model_type\": 3}"), ConfigError);
  BOOST_CHECK_THROW(read_text("{\"model_type\": \"llama\"}", {"model.from_hf=nowhere.json"}), ConfigError);
}

// Catches: a config.json nested so deeply that whoever reads, copies or prints it ends with the process.
BOOST_FIXTURE_TEST_CASE(nested_files_are_refused, HfFile) {
  const int depth = 100'000;
  auto lists = std::string(depth, '[') + std::string(depth, ']');
  for (auto* field : {"hidden_act", "rope_scaling", "architectures", "layer_types", "nobody_knows_this"}) {
    auto message = text_refusal("{\"model_type\": \"llama\", \"" + std::string(field) + "\": " + lists + "}");
    BOOST_TEST(message.find(path.string() + ": line 1, column ") != std::string::npos, message.substr(0, 300));
    BOOST_TEST(message.find("nested more than 64 deep; expected a Hugging Face config.json") != std::string::npos);
  }
}
