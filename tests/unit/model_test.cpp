// From a config to the parts of a model.

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>

#include "model/units.h"
#include "unit/plan_config.h"

using namespace meshard;
using meshard::test::config_with;
using meshard::test::kExperts;

// Catches: a word of the config that becomes another word's option, or what an option is without one.
BOOST_AUTO_TEST_CASE(every_word_becomes_its_own_option) {
  auto dense = [](const char* override) { return config_with({override}); };
  auto experts = [](const char* override) { return *model_options(config_with({override}, kExperts)).moe; };
  auto aux_loss = [](const char* type) {
    auto config =
        config_with({"model.moe.aux_loss.coeff=0.1", fmt::format("model.moe.aux_loss.type={}", type)}, kExperts);
    return model_options(config).moe->aux_loss;
  };
  using Aux = MoeOptions::AuxLoss;
  using Scoring = MoeOptions::Scoring;

  BOOST_CHECK(aux_loss("switch") == Aux::Switch);
  BOOST_CHECK(aux_loss("sequence") == Aux::Sequence);
  BOOST_CHECK(experts("model.moe.aux_loss.type=none").aux_loss == Aux::None);
  BOOST_CHECK(experts("model.moe.scoring_func=softmax").scoring == Scoring::Softmax);
  BOOST_CHECK(experts("model.moe.scoring_func=sigmoid").scoring == Scoring::Sigmoid);
  BOOST_CHECK(model_options(dense("train.activation_checkpoint=full")).decoder.recompute);
  BOOST_CHECK(!model_options(dense("train.activation_checkpoint=none")).decoder.recompute);
  BOOST_CHECK(scalar_type(dense("precision.param=bf16").precision.param) == at::kBFloat16);
  BOOST_CHECK(scalar_type(dense("precision.param=fp32").precision.param) == at::kFloat);
}

// Catches: a number of the config that a model does not get, or gets in another's place.
BOOST_AUTO_TEST_CASE(every_number_arrives) {
  auto options = model_options(
      config_with({"model.num_key_value_heads=1", "model.head_dim=10", "model.intermediate_size=48",
                   "model.max_position_embeddings=99", "model.rope_theta=77", "model.rms_norm_eps=0.25",
                   "model.initializer_range=0.5", "model.partial_rotary_factor=0.6", "model.use_qk_norm=true",
                   "model.attention_bias=true", "model.tie_word_embeddings=true", "model.moe.first_k_dense_replace=1",
                   "model.moe.n_shared_experts=3", "model.moe.routed_scaling_factor=1.5",
                   "model.moe.norm_topk_prob=false", "model.moe.z_loss_coeff=0.125", "model.moe.capacity_factor=2",
                   "model.moe.expert_bias.update_rate=0.75", "model.moe.expert_bias.initial=0.0625",
                   "model.moe.expert_bias.recenter=true"},
                  kExperts));
  auto& decoder = options.decoder;
  BOOST_TEST(decoder.vocab_size == 64);
  BOOST_TEST(decoder.hidden_size == 16);
  BOOST_TEST(decoder.num_hidden_layers == 2);
  BOOST_TEST(decoder.num_attention_heads == 2);
  BOOST_TEST(decoder.num_key_value_heads == 1);
  BOOST_TEST(decoder.head_dim == 10);
  BOOST_TEST(decoder.intermediate_size == 48);
  BOOST_TEST(decoder.max_position_embeddings == 99);
  BOOST_TEST(decoder.rope_theta == 77.0);
  BOOST_TEST(decoder.rms_norm_eps == 0.25);
  BOOST_TEST(decoder.initializer_range == 0.5);
  BOOST_TEST(decoder.partial_rotary_factor == 0.6);
  BOOST_TEST(decoder.use_qk_norm);
  BOOST_TEST(decoder.attention_bias);
  BOOST_TEST(!decoder.attention_output_bias);  // sigmoid experts: GLM, whose o_proj has none
  BOOST_TEST(decoder.tie_word_embeddings);
  auto& moe = *options.moe;
  BOOST_TEST(options.first_k_dense_replace == 1);
  BOOST_TEST(moe.hidden_size == 16);
  BOOST_TEST(moe.moe_intermediate_size == 8);
  BOOST_TEST(moe.n_routed_experts == 4);
  BOOST_TEST(moe.num_experts_per_tok == 2);
  BOOST_TEST(moe.n_shared_experts == 3);
  BOOST_TEST(moe.routed_scaling_factor == 1.5);
  BOOST_TEST(!moe.norm_topk_prob);
  BOOST_TEST(moe.initializer_range == 0.5);
  BOOST_TEST(moe.z_loss_coeff == 0.125);
  BOOST_TEST(moe.capacity_factor.value() == 2.0);
  BOOST_TEST(moe.expert_bias.enabled);
  BOOST_TEST(moe.expert_bias.update_rate == 0.75);
  BOOST_TEST(moe.expert_bias.initial == 0.0625);
  BOOST_TEST(moe.expert_bias.recenter);
}

// Catches: a model of one family taken for another, or a row of the table at another's place.
BOOST_AUTO_TEST_CASE(families) {
  for (std::size_t i = 0; i < kModelFamilies.size(); ++i) {
    BOOST_TEST((info_of(kModelFamilies[i].family).model_type == kModelFamilies[i].model_type));
  }
  auto family = [](const char* override, const char* text) {
    return info_of(model_options(config_with({override}, text)).family).model_class;
  };
  using meshard::test::kDense;
  BOOST_TEST(family("model.use_qk_norm=false", kDense) == "LlamaForCausalLM");
  BOOST_TEST(family("model.use_qk_norm=true", kDense) == "Qwen3ForCausalLM");
  BOOST_TEST(family("model.moe.scoring_func=softmax", kExperts) == "Qwen3MoeForCausalLM");
  BOOST_TEST(family("model.moe.scoring_func=sigmoid", kExperts) == "Glm4MoeForCausalLM");
}

// Catches: a unit that is missing, or that comes after the one that contains it: fully_shard would refuse it, or give
// its parameters to the other.
BOOST_AUTO_TEST_CASE(units_go_from_the_inside_out) {
  using enum ModelUnit::Kind;
  auto kinds = [](const Config& config) {
    auto model = build_model(config, at::kMeta, {});
    std::vector<ModelUnit::Kind> kinds;
    for (auto& unit : model_units(model)) kinds.push_back(unit.kind);
    BOOST_TEST((model_units(model).back().modules == std::vector<Module*>{model.lm.get()}));
    return kinds;
  };
  BOOST_TEST((kinds(config_with({})) == std::vector{Embedding, Layer, Layer, Head, Root}));
  BOOST_TEST((kinds(config_with({"model.tie_word_embeddings=true"})) == std::vector{Layer, Layer, Root}));
  BOOST_TEST((kinds(config_with({}, kExperts)) ==
              std::vector{Embedding, RoutedExperts, Layer, RoutedExperts, Layer, Head, Root}));
  BOOST_TEST((kinds(config_with({"model.moe.first_k_dense_replace=1"}, kExperts)) ==
              std::vector{Embedding, Layer, RoutedExperts, Layer, Head, Root}));
}
