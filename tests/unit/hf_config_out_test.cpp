#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

#include "hf/config_out.h"
#include "model/options.h"
#include "support/memory_files.h"
#include "unit/hf_models.h"

using namespace meshard;
using namespace meshard::test;
using nlohmann::json;

namespace {

json config_of(const ModelOptions& model) {
  return hf_config(model, at::kFloat).json;
}

std::string refusal(const ModelOptions& model) {
  return message_of<ConfigError>([&] { hf_config(model, at::kFloat); });
}

/// The model that `model: {from_hf: ...}` makes of a config.json.
ModelOptions read_back(const nlohmann::ordered_json& written) {
  auto path = std::filesystem::temp_directory_path() / ("meshard-hf-out-" + std::to_string(getpid()) + ".json");
  std::ofstream(path) << written;
  auto config = parse_config("schema: 1\nmodel: {from_hf: \"" + path.string() +
                                 "\"}\ndata: {type: synthetic}\n"
                                 "train: {steps: 1, global_batch_size: 4, seq_len: 8}\n",
                             "run.yaml", {}, 1);
  std::filesystem::remove(path);
  return model_options(config);
}

}  // namespace

// Catches: a field that is left out and has another default there, a wrong name or class.
BOOST_AUTO_TEST_CASE(glm_has_every_field) {
  auto model = tiny_glm();
  model.moe->routed_scaling_factor = 2.5;
  model.moe->n_group = 2;
  BOOST_TEST(config_of(model) == json::parse(R"({
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "dtype": "float32",
    "vocab_size": 20, "hidden_size": 8, "intermediate_size": 10, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 32, "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": false,
    "initializer_range": 0.02, "tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": null,
    "use_qk_norm": false, "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 2, "moe_intermediate_size": 4, "n_group": 2, "topk_group": 1, "norm_topk_prob": true,
    "routed_scaling_factor": 2.5})"));
}

// Catches: the class of another model, bf16 weights announced as fp32.
BOOST_AUTO_TEST_CASE(the_class_follows_from_the_model) {
  BOOST_TEST(config_of(tiny_llama())["architectures"] == json::array({"LlamaForCausalLM"}));
  BOOST_TEST(config_of(tiny_qwen())["architectures"] == json::array({"Qwen3ForCausalLM"}));
  auto qwen = config_of(tiny_qwen_moe());
  BOOST_TEST(qwen["architectures"] == json::array({"Qwen3MoeForCausalLM"}));
  BOOST_TEST(qwen["num_experts"] == 4);
  BOOST_TEST(qwen["mlp_only_layers"] == json::array({0}));
  BOOST_TEST(qwen["decoder_sparse_step"] == 1);
  BOOST_TEST(!qwen.contains("n_routed_experts"));
  BOOST_TEST(hf_config(tiny_llama(), at::kBFloat16).json["dtype"] == "bfloat16");
}

// Catches: a model that from_hf reads as another one than was written.
BOOST_AUTO_TEST_CASE(from_hf_reads_the_same_model) {
  auto odd = tied(with_attention_bias(tiny_glm()));
  odd.decoder.use_qk_norm = true;
  odd.decoder.rms_norm_eps = 3e-6;
  odd.decoder.rope_theta = 123456.5;
  odd.decoder.initializer_range = 0.013;
  odd.moe->norm_topk_prob = false;
  odd.moe->n_shared_experts = 0;
  odd.moe->n_routed_experts = 8;
  odd.moe->n_group = 4;
  odd.moe->topk_group = 3;
  auto dense_first = tiny_qwen_moe();
  dense_first.first_k_dense_replace = 0;
  dense_first.moe->norm_topk_prob = false;
  for (auto& model :
       {tiny_llama(), tied(with_attention_bias(tiny_llama())), tiny_qwen(), with_attention_bias(tiny_qwen()),
        tiny_glm(), odd, tiny_qwen_moe(), with_attention_bias(dense_first)}) {
    auto written = hf_config(model, at::kFloat);
    auto again = read_back(written.json);
    BOOST_TEST(hf_config(again, at::kFloat).json == written.json);
    BOOST_TEST(again.decoder.attention_output_bias == model.decoder.attention_output_bias);
    BOOST_TEST(written.warnings.empty());
  }
}

// Catches: a model written as a class that computes something else, in silence; reasons of which only one is told.
BOOST_AUTO_TEST_CASE(what_no_class_computes_is_refused) {
  auto llama = tiny_llama();
  llama.decoder.partial_rotary_factor = 0.5;
  BOOST_TEST(says(refusal(llama), "LlamaForCausalLM"));
  BOOST_TEST(says(refusal(llama), "partial_rotary_factor 0.5"));

  auto qwen = tiny_qwen();
  qwen.decoder.attention_bias = true;
  BOOST_TEST(says(refusal(qwen), "attention_bias: its q, k, v and o"));

  auto glm = tiny_glm();
  glm.decoder.attention_output_bias = true;
  BOOST_TEST(says(refusal(glm), "attention_bias: its o_proj never"));

  auto moe = with_experts(tiny_llama(), MoeOptions::Scoring::Softmax);
  moe.moe->n_shared_experts = 1;
  moe.moe->routed_scaling_factor = 2.0;
  moe.moe->n_group = 2;
  moe.decoder.partial_rotary_factor = 0.5;
  auto message = refusal(moe);
  for (auto* part : {"Qwen3MoeForCausalLM", "use_qk_norm false", "n_shared_experts 1", "routed_scaling_factor 2",
                     "n_group 2", "partial_rotary_factor 0.5"}) {
    BOOST_TEST(says(message, part), part << " in " << message);
  }
}

// Catches: a user who learns from worse results that Hugging Face drops no token.
BOOST_AUTO_TEST_CASE(a_capacity_factor_is_a_warning) {
  auto model = tiny_glm();
  model.moe->capacity_factor = 1.25;
  auto config = hf_config(model, at::kFloat);
  BOOST_TEST(config.warnings.size() == 1u);
  BOOST_TEST(says(config.warnings.at(0), "capacity_factor 1.25"));
}
