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
  std::string refusal(const json& config) {
    try {
      read(config);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
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
  auto refused = [&](const char* type, const char* field, const json& value) {
    auto config = experts(sizes(type), "num_experts");
    config["n_routed_experts"] = 8;
    config[field] = value;
    auto message = refusal(config);
    BOOST_TEST(message.find("run.yaml:2:18  model.from_hf: ") != std::string::npos, message);
    BOOST_TEST(message.find(field) != std::string::npos, message);
    BOOST_TEST(message.find("(read from ") != std::string::npos, message);
  };
  refused("llama", "model_type", "gpt2");
  refused("llama", "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}});
  refused("llama", "rope_parameters", {{"rope_type", "yarn"}, {"factor", 8.0}});
  refused("llama", "sliding_window", 128);
  refused("llama", "hidden_act", "gelu");
  refused("llama", "mlp_bias", true);
  refused("llama", "attention_dropout", 0.1);
  refused("llama", "quantization_config", {{"bits", 4}});
  refused("qwen3", "layer_types", {"full_attention", "sliding_attention"});
  refused("qwen3_moe", "decoder_sparse_step", 2);
  refused("qwen3_moe", "mlp_only_layers", {1});
  refused("glm4_moe", "scoring_func", "softmax");
  auto windows = sizes("qwen3");
  windows["sliding_window"] = 128;
  windows["use_sliding_window"] = true;
  BOOST_TEST(refusal(windows).find("sliding_window") != std::string::npos);
}

// Catches: a value of the file that escapes the checks of the key it becomes, or a broken file that ends in a crash.
BOOST_FIXTURE_TEST_CASE(checks_the_values, HfFile) {
  auto config = sizes("llama");
  config["hidden_size"] = "wide";
  auto message = refusal(config);
  BOOST_TEST(message.find("run.yaml:2:18  model.hidden_size: the text \"wide\"") != std::string::npos, message);
  config = sizes("llama");
  config.erase("vocab_size");
  message = refusal(config);
  BOOST_TEST(message.find("model.vocab_size: missing") != std::string::npos, message);
  BOOST_CHECK_THROW(read_text("{"), ConfigError);
  BOOST_CHECK_THROW(read_text("[]"), ConfigError);
  BOOST_CHECK_THROW(read_text("{\"model_type\": 3}"), ConfigError);
  BOOST_CHECK_THROW(read_text("{\"model_type\": \"llama\"}", {"model.from_hf=nowhere.json"}), ConfigError);
}
