#include "config/hugging_face.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "config/hugging_face_fields.h"

namespace meshard {
namespace {

using nlohmann::json;

constexpr std::size_t kLargestConfig = std::size_t{16} << 20;

class Importer {
 public:
  Importer(const HuggingFaceFields& fields, const Place& place) : fields_(fields), place_(place) {}

  YamlNode model() {
    const bool glm = fields_.glm();
    auto section = empty_map();
    for (const auto* name :
         {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}) {
      copy(section, name, name);
    }
    copy_heads(section);
    copy(section, "max_position_embeddings", "max_position_embeddings",
         glm              ? "131072"
         : fields_.qwen() ? "32768"
                          : "2048");
    copy(section, "rope_theta", "rope_theta", "10000.0");
    copy(section, "partial_rotary_factor", "partial_rotary_factor", glm ? "0.5" : "1.0");
    if (const auto& rope = fields_["rope_parameters"]; rope.is_object()) {
      copy_from(rope, section, "rope_theta");
      copy_from(rope, section, "partial_rotary_factor");
    }
    copy(section, "rms_norm_eps", "rms_norm_eps", glm ? "1e-5" : "1e-6");
    put(section, "use_qk_norm", fields_.qwen() ? "true" : "false");
    if (glm) copy(section, "use_qk_norm", "use_qk_norm");
    copy(section, "attention_bias", "attention_bias", "false");
    copy(section, "tie_word_embeddings", "tie_word_embeddings", "false");
    copy(section, "initializer_range", "initializer_range", "0.02");
    if (fields_.has_experts()) add_child(section, "moe", glm ? glm_moe() : qwen_moe());
    return section;
  }

 private:
  // Left out: as many key-value heads as heads, of hidden_size / heads each.
  void copy_heads(YamlNode& section) {
    const bool qwen = fields_.type() == "qwen3";
    const auto& shared = fields_["num_key_value_heads"];
    if (!shared.is_null() || fields_.has_experts()) {
      put(section, "num_key_value_heads", shared);  // classes with experts take no null, and their default fits no file
    } else if (qwen && !fields_.has("num_key_value_heads")) {
      put(section, "num_key_value_heads", "32");
    }
    if (fields_.type() == "llama" && fields_["head_dim"].is_null()) return;
    copy(section, "head_dim", "head_dim", qwen ? "128" : nullptr);
  }

  YamlNode glm_moe() {
    auto moe = empty_map();
    copy(moe, "n_routed_experts", "n_routed_experts");
    copy(moe, "num_experts_per_tok", "num_experts_per_tok", "8");
    copy(moe, "n_shared_experts", "n_shared_experts", "1");
    copy(moe, "moe_intermediate_size", "moe_intermediate_size");
    copy(moe, "first_k_dense_replace", "first_k_dense_replace", "1");
    put(moe, "scoring_func", "sigmoid");
    copy(moe, "n_group", "n_group", "1");
    copy(moe, "topk_group", "topk_group", "1");
    copy(moe, "norm_topk_prob", "norm_topk_prob", "true");
    copy(moe, "routed_scaling_factor", "routed_scaling_factor", "1.0");
    return moe;
  }

  YamlNode qwen_moe() {
    auto moe = empty_map();
    copy(moe, "n_routed_experts", fields_["num_experts"].is_null() ? "num_local_experts" : "num_experts");
    copy(moe, "num_experts_per_tok", "num_experts_per_tok", "8");
    put(moe, "n_shared_experts", "0");
    copy(moe, "moe_intermediate_size", "moe_intermediate_size");
    put(moe, "first_k_dense_replace", std::to_string(fields_.dense_layers()));
    put(moe, "scoring_func", "softmax");
    copy(moe, "norm_topk_prob", "norm_topk_prob", "false");
    return moe;
  }

  static YamlNode empty_map() {
    YamlNode map;
    map.kind = YamlNode::Kind::Map;
    return map;
  }

  void add_child(YamlNode& map, const std::string& key, YamlNode value) {
    value.key = key;
    value.place = value.key_place = place_;
    if (auto* old = map.find(key)) {
      *old = std::move(value);
    } else {
      map.children.push_back(std::move(value));
    }
  }

  void put(YamlNode& map, const std::string& key, const json& value) {
    YamlNode node;
    node.kind = value.is_array()    ? YamlNode::Kind::List
                : value.is_object() ? YamlNode::Kind::Map
                : value.is_null()   ? YamlNode::Kind::Null
                                    : YamlNode::Kind::Scalar;
    node.quoted = value.is_string();
    if (node.kind == YamlNode::Kind::Scalar)
      node.text = value.is_string() ? value.get<std::string>() : json_text(value);
    add_child(map, key, std::move(node));
  }

  void put(YamlNode& map, const std::string& key, const char* plain) { put(map, key, std::string(plain)); }

  void put(YamlNode& map, const std::string& key, const std::string& plain) {
    YamlNode node;
    node.kind = YamlNode::Kind::Scalar;
    node.text = plain;
    add_child(map, key, std::move(node));
  }

  void copy_from(const json& from, YamlNode& map, const std::string& name) {
    auto found = from.find(name);
    if (found != from.end() && !found->is_null()) put(map, name, *found);
  }

  // A null is no default: the key that it becomes refuses it, as the newer classes do.
  void copy(YamlNode& map, const std::string& key, const std::string& name, const char* default_value = nullptr) {
    if (fields_.has(name)) {
      put(map, key, fields_[name]);
    } else if (default_value != nullptr) {
      put(map, key, default_value);
    }
  }

  const HuggingFaceFields& fields_;
  const Place& place_;
};

}  // namespace

std::optional<YamlNode> read_hugging_face(const std::string& file, const Place& place, Report& report) {
  auto refuse = [&](const std::string& why) { report.add(place, "model.from_hf", why); };
  json root;
  try {
    root = read_json_file<json>(file, {.text = kLargestConfig});
  } catch (const IoError& error) {
    refuse(fmt::format("{}; expected a Hugging Face config.json", error.what()));
    return {};
  }
  if (!root.is_object()) {
    refuse(fmt::format("{} is not a config.json: expected a JSON object", file));
    return {};
  }
  const HuggingFaceFields fields(std::move(root));
  auto from = place;
  from.via = file;
  if (!fields.known_type()) {
    report.add(
        from, "model.from_hf",
        fmt::format("model_type `{}` is not known; expected llama, qwen3, qwen3_moe or glm4_moe", fields.type()));
    return {};
  }
  refuse_what_we_lack(fields, from, report);
  return Importer(fields, from).model();
}

}  // namespace meshard
