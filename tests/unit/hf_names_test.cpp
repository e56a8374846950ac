#include <boost/test/unit_test.hpp>
#include <map>

#include "dcp/tiling.h"
#include "hf/names.h"
#include "moe/moe_layer.h"
#include "nn/causal_lm.h"
#include "unit/hf_models.h"

using namespace meshard;
using namespace meshard::test;

namespace {

using Shapes = std::map<std::string, Shape>;

/// What the modules themselves register, with the experts stacked.
Shapes registered(const ModelOptions& model) {
  std::unique_ptr<MoeLayers> experts;
  BlockFactories factories;
  if (model.moe) {
    experts = std::make_unique<MoeLayers>(*model.moe, model.first_k_dense_replace, ExpertParallel{});
    factories.feed_forward = [&](std::int64_t layer, const at::TensorOptions& options) {
      return experts->make(layer, options);
    };
  }
  CausalLM lm(model.decoder, at::TensorOptions().device(at::kMeta).dtype(at::kFloat), factories);
  Shapes shapes;
  for (auto& [fqn, parameter] : named_parameters(lm)) {
    shapes[fqn] = parameter.slot().part.whole_shape();
  }
  walk(lm, [&](const std::string& fqn, Module& module) {
    for (auto& buffer : module.buffers()) {
      if (buffer.persistent) shapes[join_name(fqn, buffer.name)] = buffer.tensor.sizes().vec();
    }
  });
  return shapes;
}

Shapes listed(const ModelOptions& model) {
  Shapes shapes;
  for (auto& tensor : model_tensors(model)) BOOST_TEST(shapes.emplace(tensor.fqn, tensor.shape).second, tensor.fqn);
  return shapes;
}

const ModelOptions kModels[] = {
    tiny_llama(),    tied(with_attention_bias(tiny_llama())), tiny_qwen(), tiny_glm(), with_attention_bias(tiny_glm()),
    tiny_qwen_moe(), with_attention_bias(tiny_qwen_moe())};

std::map<std::string, FileTensor> exported(const ModelOptions& model) {
  std::map<std::string, FileTensor> tensors;
  for (auto& tensor : exported_tensors(model)) BOOST_TEST(tensors.emplace(tensor.name, tensor).second, tensor.name);
  return tensors;
}

}  // namespace

// Catches: a parameter or buffer of the model that no export writes and no import fills.
BOOST_AUTO_TEST_CASE(every_tensor_of_the_modules_is_listed) {
  for (auto& model : kModels) BOOST_TEST((listed(model) == registered(model)));
}

// Catches: a name or shape other than Hugging Face's.
BOOST_AUTO_TEST_CASE(names_are_those_of_hugging_face) {
  auto model = tiny_glm();
  model.decoder.num_hidden_layers = 2;
  model.moe->n_routed_experts = 2;
  const std::string attention[] = {"q_proj.weight [16,8]", "k_proj.weight [8,8]", "v_proj.weight [8,8]",
                                   "o_proj.weight [8,16]"};
  std::vector<std::string> expected{"model.embed_tokens.weight [20,8]"};
  auto add = [&](int layer, std::initializer_list<std::string> names) {
    auto prefix = "model.layers." + std::to_string(layer) + ".";
    for (auto& name : attention) expected.push_back(prefix + "self_attn." + name);
    for (auto& name : names) expected.push_back(prefix + "mlp." + name);
    expected.push_back(prefix + "input_layernorm.weight [8]");
    expected.push_back(prefix + "post_attention_layernorm.weight [8]");
  };
  add(0, {"gate_proj.weight [10,8]", "up_proj.weight [10,8]", "down_proj.weight [8,10]"});
  add(1,
      {"gate.weight [2,8]", "gate.e_score_correction_bias [2]", "experts.0.gate_proj.weight [4,8]",
       "experts.0.up_proj.weight [4,8]", "experts.1.gate_proj.weight [4,8]", "experts.1.up_proj.weight [4,8]",
       "experts.0.down_proj.weight [8,4]", "experts.1.down_proj.weight [8,4]", "shared_experts.gate_proj.weight [8,8]",
       "shared_experts.up_proj.weight [8,8]", "shared_experts.down_proj.weight [8,8]"});
  expected.push_back("model.norm.weight [8]");
  expected.push_back("lm_head.weight [20,8]");

  std::vector<std::string> names;
  for (auto& tensor : exported_tensors(model)) {
    auto text = tensor.name + " [";
    for (auto size : tensor.shape) text += std::to_string(size) + ",";
    text.back() = ']';
    names.push_back(text);
  }
  BOOST_TEST(names == expected, boost::test_tools::per_element());
}

// Catches: gate and up swapped, an expert's rows taken from its neighbour, a part that no file holds.
BOOST_AUTO_TEST_CASE(experts_are_cut_where_they_meet) {
  auto parts = file_tensors({"model.layers.3.mlp.experts.gate_up_proj", {2, 6, 5}});
  BOOST_TEST(parts.size() == 4u);
  BOOST_TEST(parts[2].name == "model.layers.3.mlp.experts.1.gate_proj.weight");
  BOOST_TEST((parts[2].box == Box{{1, 0, 0}, {1, 3, 5}}));
  BOOST_TEST(parts[3].name == "model.layers.3.mlp.experts.1.up_proj.weight");
  BOOST_TEST((parts[3].box == Box{{1, 3, 0}, {1, 3, 5}}));
  for (auto& model : kModels) {
    for (auto& tensor : model_tensors(model)) {
      std::vector<Box> boxes;
      for (auto& part : file_tensors(tensor)) {
        boxes.push_back(part.box);
        BOOST_TEST((whole(part.shape).numel() == part.box.numel() && part.fqn == tensor.fqn));
      }
      BOOST_TEST(tiling_problem(tensor.shape, boxes) == "");
    }
  }
}

// Catches: a tied head that is stored twice, a bias that a class does not have, one that is random on loading.
BOOST_AUTO_TEST_CASE(exports_have_what_their_class_has) {
  BOOST_TEST(exported(tiny_llama()).contains("lm_head.weight"));
  BOOST_TEST(!exported(tied(tiny_llama())).contains("lm_head.weight"));

  const std::string mlp = "model.layers.1.mlp.", bias = mlp + "gate.e_score_correction_bias";
  BOOST_TEST(!exported(tiny_qwen_moe()).contains(bias));
  auto model = tiny_glm();
  BOOST_TEST(exported(model).at(bias).fqn == bias);
  model.moe->expert_bias.enabled = false;
  BOOST_TEST(exported(model).at(bias).fqn == "");
  BOOST_TEST((exported(model).at(bias).shape == Shape{4}));

  model.moe->n_shared_experts = 0;
  auto tensors = exported(model);
  BOOST_TEST((tensors.at(mlp + "shared_experts.gate_proj.weight").shape == Shape{0, 8}));
  BOOST_TEST((tensors.at(mlp + "shared_experts.up_proj.weight").shape == Shape{0, 8}));
  BOOST_TEST((tensors.at(mlp + "shared_experts.down_proj.weight").shape == Shape{8, 0}));
  BOOST_TEST(tensors.contains("model.layers.2.mlp.shared_experts.up_proj.weight"));
  BOOST_TEST(!tensors.contains("model.layers.0.mlp.shared_experts.up_proj.weight"));
}
