// Import and export of whole models.
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <boost/test/unit_test.hpp>
#include <random>

#include "dcp/torch_archive.h"
#include "hf/export.h"
#include "hf/import.h"
#include "hf/names.h"
#include "support/memory_files.h"
#include "unit/hf_models.h"

using namespace meshard;
using namespace meshard::test;

namespace {

using Tensors = std::map<std::string, at::Tensor>;

/// Random values of every tensor of ours, by FQN. A tied head is the embedding.
Tensors random_weights(const ModelOptions& model) {
  Tensors weights;
  for (auto& [fqn, shape] : model_tensors(model)) weights[fqn] = at::randn(shape);
  if (model.decoder.tie_word_embeddings) weights["lm_head.weight"] = weights["model.embed_tokens.weight"];
  return weights;
}

/// What files of this model hold, spelt out without hf/names.h.
Tensors by_expert(const Tensors& weights) {
  Tensors files;
  for (auto& [fqn, values] : weights) {
    auto at = fqn.find(".experts.gate_up_proj"), down = fqn.find(".experts.down_proj");
    if (at == std::string::npos && down == std::string::npos) files[fqn] = values;
    for (std::int64_t e = 0; at != std::string::npos && e < values.size(0); ++e) {
      auto expert = fqn.substr(0, at) + ".experts." + std::to_string(e);
      files[expert + ".gate_proj.weight"] = values[e].chunk(2)[0];
      files[expert + ".up_proj.weight"] = values[e].chunk(2)[1];
    }
    if (down == std::string::npos) continue;
    for (std::int64_t e = 0; e < values.size(0); ++e) {
      files[fqn.substr(0, down) + ".experts." + std::to_string(e) + ".down_proj.weight"] = values[e];
    }
  }
  return files;
}

void put(MemoryFiles& files, const std::string& folder, const Tensors& tensors, at::ScalarType dtype = at::kFloat) {
  std::vector<SafetensorsItem> items;
  std::vector<at::Tensor> values;
  for (auto& [name, tensor] : tensors) {
    items.push_back({name, dtype, tensor.sizes().vec()});
    values.push_back(tensor.to(dtype).contiguous());
  }
  write_safetensors(
      files, folder, items, [&](std::size_t i) { return values[i]; }, {}, 1000);
}

/// All of the model's tensors, each in `cuts` + 1 random pieces along dimension 0 or 1, filled with 7.
StateDict state_of(const ModelOptions& model, std::mt19937& random, int cuts) {
  StateDict state;
  for (auto& [fqn, shape] : model_tensors(model)) {
    StateTensor tensor;
    tensor.key = "model." + fqn;
    tensor.shape = shape;
    auto d = shape.size() > 1 ? random() % 2 : 0;
    std::vector<std::int64_t> at{0, shape[d]};
    for (int i = 0; i < cuts; ++i) at.push_back(static_cast<std::int64_t>(random() % (shape[d] + 1)));
    std::ranges::sort(at);
    for (std::size_t i = 1; i < at.size(); ++i) {
      auto box = whole(shape);
      box.offsets[d] = at[i - 1];
      box.sizes[d] = at[i] - at[i - 1];
      if (box.numel() > 0) tensor.pieces.push_back({box, at::full(box.sizes, 7.0)});
    }
    state.tensors.push_back(std::move(tensor));
  }
  return state;
}

/// Keys whose pieces are not those of `weights`.
std::vector<std::string> different(const StateDict& state, const Tensors& weights) {
  std::vector<std::string> keys;
  for (auto& tensor : state.tensors) {
    for (auto& piece : tensor.pieces) {
      if (!piece.values.equal(part_of(weights.at(tensor.key.substr(6)), piece.box))) keys.push_back(tensor.key);
    }
  }
  return keys;
}

struct Imported {
  StateDict state;
  std::vector<std::string> notes;
};

Imported import(MemoryFiles& files, const std::string& folder, const ModelOptions& model, int cuts = 0) {
  std::mt19937 random(cuts);
  Imported result{state_of(model, random, cuts), {}};
  result.notes = import_weights(Safetensors(files, folder), model, result.state);
  return result;
}

std::string refusal(const ModelOptions& model, const Tensors& tensors) {
  MemoryFiles files;
  put(files, "m", tensors);
  std::mt19937 random(1);
  auto state = state_of(model, random, 2);
  auto message = message_of<IoError>([&] { import_weights(Safetensors(files, "m"), model, state); });
  for (auto& tensor : state.tensors) {
    for (auto& piece : tensor.pieces) BOOST_TEST((message == "accepted" || piece.values.eq(7).all().item<bool>()));
  }
  return message;
}

/// A checkpoint as PyTorch would write it: every tensor in two chunks, one file.
void put_checkpoint(MemoryFiles& files, const std::string& folder, const Tensors& weights) {
  Bytes data;
  CheckpointMetadata metadata;
  for (auto& [fqn, values] : weights) {
    auto key = "model." + fqn;
    auto& entry = metadata.tensors[key];
    entry.shape = values.sizes().vec();
    metadata.paths[key] = {"model", fqn};
    for (auto [begin, end] :
         {std::pair{std::int64_t{0}, entry.shape[0] / 2}, std::pair{entry.shape[0] / 2, entry.shape[0]}}) {
      auto box = whole(entry.shape);
      box.offsets[0] = begin;
      box.sizes[0] = end - begin;
      auto offset = std::ssize(data);
      auto length = write_tensor_item(part_of(values, box).contiguous(), [&](std::span<const std::byte> bytes) {
        data.insert(data.end(), bytes.begin(), bytes.end());
      });
      entry.chunks.push_back({box, {"__0_0.distcp", offset, length}});
    }
  }
  files.files[folder + "/__0_0.distcp"] = data;
  files.put(folder + "/.metadata", encode_metadata(metadata, folder, "save"));
}

Tensors read_all(MemoryFiles& files, const std::string& folder) {
  const Safetensors from(files, folder);
  Tensors tensors;
  for (auto& [name, entry] : from.tensors()) {
    tensors[name] = at::zeros(entry.shape, entry.dtype);
    from.read(name, whole(entry.shape), tensors[name]);
  }
  return tensors;
}

}  // namespace

// Catches: values of another tensor, expert, projection or row, in any cut; a piece that is left out.
BOOST_AUTO_TEST_CASE(files_fill_any_sharding) {
  for (auto& model : {with_attention_bias(tiny_llama()), tiny_glm(), tiny_qwen_moe()}) {
    auto weights = random_weights(model);
    auto held = weights;
    if (model.moe && !model.moe->expert_bias.enabled) {
      std::erase_if(held, [](auto& tensor) { return is_expert_bias(tensor.first); });
    }
    MemoryFiles files;
    put(files, "split", by_expert(held));
    put(files, "stacked", held);
    for (int cuts : {0, 1, 3, 8}) {
      for (auto* folder : {"split", "stacked"}) {
        auto result = import(files, folder, model, cuts);
        std::erase_if(result.state.tensors,
                      [&](auto& tensor) { return is_expert_bias(tensor.key) && !model.moe->expert_bias.enabled; });
        BOOST_TEST(different(result.state, weights).empty());
        BOOST_TEST(result.notes.empty());
      }
    }
  }
}

// Catches: bf16 files that are refused, or converted without a word.
BOOST_AUTO_TEST_CASE(conversions_are_said) {
  auto model = tiny_llama();
  auto weights = random_weights(model);
  MemoryFiles files;
  put(files, "m", weights, at::kBFloat16);
  auto result = import(files, "m", model, 2);
  for (auto& [name, values] : weights) values = values.to(at::kBFloat16).to(at::kFloat);
  BOOST_TEST(different(result.state, weights).empty());
  BOOST_TEST(result.notes.size() == 1u);
  BOOST_TEST(result.notes.at(0) == std::to_string(weights.size()) + " tensors were converted from BF16 to F32");
}

// Catches: an expert bias set to something, or a model refused, because a file knows none.
BOOST_AUTO_TEST_CASE(an_absent_bias_keeps_its_value) {
  auto model = tiny_glm();
  auto weights = random_weights(model), held = weights;
  std::erase_if(held, [](auto& tensor) { return is_expert_bias(tensor.first); });
  MemoryFiles files;
  put(files, "m", by_expert(held));
  auto result = import(files, "m", model, 1);
  for (auto& [name, values] : weights) {
    if (is_expert_bias(name)) values = at::full(values.sizes(), 7.0);
  }
  BOOST_TEST(different(result.state, weights).empty());
  BOOST_TEST(result.notes.size() == 1u);
  BOOST_TEST(says(result.notes.at(0), "no expert bias for 2 layers"));
}

// Catches: a model with some of its weights random, or of another shape; weights changed before it is refused.
BOOST_AUTO_TEST_CASE(what_does_not_fit_is_one_error) {
  auto model = tiny_glm();
  auto tensors = by_expert(random_weights(model));
  BOOST_TEST(refusal(model, tensors) == "accepted");
  const std::string layer = "model.layers.2.mlp.";
  tensors.erase(layer + "experts.3.up_proj.weight");
  tensors.erase("lm_head.weight");
  tensors["model.norm.weight"] = at::zeros({9});
  tensors[layer + "experts.4.up_proj.weight"] = at::zeros({4, 8});
  tensors["model.layers.0.mlp.gate.weight"] = at::zeros({4, 8});
  auto message = refusal(model, tensors);
  for (auto& part : {"2 missing", "2 in the checkpoint but not wanted", "1 of another shape"})
    BOOST_TEST(says(message, part));
  for (auto& part : {layer + "experts.3.up_proj.weight", std::string("lm_head.weight"),
                     std::string("model.norm.weight: [9] in the file, [8] wanted"), layer + "experts.4.up_proj.weight",
                     std::string("model.layers.0.mlp.gate.weight")}) {
    BOOST_TEST(says(message, part), part << " in " << message);
  }
}

// Catches: files of real models that are refused for what they need not have; a head or bias ignored that matters.
BOOST_AUTO_TEST_CASE(harmless_extras_are_read_over) {
  auto model = tied(tiny_glm());
  model.moe->expert_bias.enabled = false;
  model.moe->n_shared_experts = 0;
  auto tensors = by_expert(random_weights(model));
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::zeros({3});
  tensors["model.layers.1.mlp.shared_experts.up_proj.weight"] = at::zeros({0, 8});
  BOOST_TEST(says(refusal(model, tensors), "e_score_correction_bias (not zero, but expert_bias is off)"));
  for (auto& [name, values] : tensors) {
    if (is_expert_bias(name)) values = at::zeros(values.sizes());
  }
  BOOST_TEST(refusal(model, tensors) == "accepted");
  tensors.at("lm_head.weight") = at::zeros({20, 8});
  BOOST_TEST(says(refusal(model, tensors), "lm_head.weight (not the embedding that it is tied to)"));
  tensors.erase("lm_head.weight");
  BOOST_TEST(refusal(model, tensors) == "accepted");
}

// Catches: a released checkpoint refused for the layer that predicts a second token; other layers left out with it.
BOOST_AUTO_TEST_CASE(prediction_layers_are_left_out) {
  auto model = tiny_glm();
  auto weights = random_weights(model);
  auto held = by_expert(weights);
  const std::string layer = "model.layers.3.";  // the model has 0 to 2
  for (auto* name : {"eh_proj.weight", "enorm.weight", "hnorm.weight", "embed_tokens.weight", "shared_head.head.weight",
                     "mlp.gate.e_score_correction_bias", "mlp.experts.0.up_proj.weight"}) {
    held[layer + name] = at::randn({2, 2});
  }
  MemoryFiles files;
  auto with = [&](const char* fields) {
    put(files, "m", held);
    files.put("m/config.json", fields);
  };
  with(R"({"num_hidden_layers": 3, "num_nextn_predict_layers": 1})");
  auto result = import(files, "m", model, 2);
  BOOST_TEST(different(result.state, weights).empty());
  BOOST_TEST(result.notes.size() == 1u);
  BOOST_TEST(result.notes.at(0) == "7 tensors of multi-token-prediction layers were left out: this model has none");

  auto refused = [&] { return message_of<IoError>([&] { import(files, "m", model); }); };
  for (auto* fields : {"", R"({"num_hidden_layers": 3})", R"({"num_hidden_layers": 3, "num_nextn_predict_layers": 0})",
                       R"({"num_hidden_layers": 3, "num_nextn_predict_layers": null})",
                       R"({"num_hidden_layers": 4, "num_nextn_predict_layers": 1})"}) {
    files = {};
    with(fields);
    BOOST_TEST(says(refused(), "7 in the checkpoint but not wanted"), fields << ": " << refused());
    BOOST_TEST(says(refused(), "model.layers.3.enorm.weight"));
  }
  for (auto* name :
       {"model.layers.4.enorm.weight", "model.layers.33.enorm.weight", "model.layers.3", "model.layers."}) {
    held[name] = at::randn({2});
  }
  files = {};
  with(R"({"num_hidden_layers": 3, "num_nextn_predict_layers": 1})");
  BOOST_TEST(says(refused(), "4 in the checkpoint but not wanted"));
  files.put("m/config.json", "{");
  BOOST_TEST(says(refused(), "m/config.json is damaged"));
}

// Catches: an export with values of another tensor, one that is not read back, a bias that is rounded.
BOOST_AUTO_TEST_CASE(an_export_is_read_back) {
  auto plain = tiny_glm();
  plain.moe->expert_bias.enabled = false;
  plain.moe->n_shared_experts = 0;
  for (auto& model : {tied(tiny_llama()), tiny_glm(), plain, tiny_qwen_moe()}) {
    auto weights = random_weights(model);
    MemoryFiles files;
    put_checkpoint(files, "step", weights);
    const CheckpointReader checkpoint(files, "step");
    BOOST_TEST(export_model(checkpoint, model, files, "fp32").empty());
    BOOST_TEST(export_model(checkpoint, model, files, "bf16", {at::kBFloat16, 500}).empty());
    BOOST_TEST(nlohmann::json::parse(files.text("bf16/config.json"))["dtype"] == "bfloat16");
    BOOST_TEST((files.exists("fp32/model.safetensors") && files.exists("bf16/model.safetensors.index.json")));

    auto expected = by_expert(weights);
    if (model.decoder.tie_word_embeddings) expected.erase("lm_head.weight");
    auto fp32 = read_all(files, "fp32"), bf16 = read_all(files, "bf16");
    BOOST_TEST(fp32.size() == bf16.size());
    for (auto& [name, values] : fp32) {
      BOOST_TEST_CONTEXT(name) {
        const bool bias = is_expert_bias(name), off = bias && !model.moe->expert_bias.enabled;
        BOOST_TEST(values.equal(off || values.numel() == 0 ? at::zeros(values.sizes()) : expected.at(name)));
        BOOST_TEST(bf16.at(name).equal(values.to(bias ? at::kFloat : at::kBFloat16)));
      }
    }
    auto result = import(files, "fp32", model, 3);
    std::erase_if(result.state.tensors, [&](auto& tensor) {
      return (is_expert_bias(tensor.key) && !model.moe->expert_bias.enabled) ||
             (model.decoder.tie_word_embeddings && tensor.key == "model.lm_head.weight");
    });
    BOOST_TEST(different(result.state, weights).empty());
  }
}

// Catches: a folder written from another model's checkpoint, or for a class that computes something else.
BOOST_AUTO_TEST_CASE(a_checkpoint_must_be_of_the_model) {
  auto model = tiny_llama();
  auto weights = random_weights(model);
  weights.erase("model.norm.weight");
  weights["model.extra"] = at::zeros({2});
  MemoryFiles files;
  put_checkpoint(files, "step", weights);
  const CheckpointReader checkpoint(files, "step");
  auto before = files.files;
  auto message = message_of<IoError>([&] { export_model(checkpoint, model, files, "out"); });
  BOOST_TEST(says(message, "model.model.norm.weight"));
  BOOST_TEST(says(message, "model.model.extra"));
  model.decoder.partial_rotary_factor = 0.5;
  BOOST_TEST(says(message_of<ConfigError>([&] { export_model(checkpoint, model, files, "out"); }), "partial_rotary"));
  BOOST_TEST((files.files == before));
}
