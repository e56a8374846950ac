#include "config/hugging_face.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace meshard {
namespace {

using nlohmann::json;

class Importer {
 public:
  Importer(json root, Place place, Report& report) : root_(std::move(root)), place_(std::move(place)), report_(report) {
    type_ =
        root_.value("model_type", json("(none)")).is_string() ? root_.value("model_type", "(none)") : "(not a text)";
  }

  YamlNode model() {
    const bool glm = type_ == "glm4_moe", qwen = type_ == "qwen3" || type_ == "qwen3_moe";
    if (!glm && !qwen && type_ != "llama") {
      refuse(fmt::format("model_type `{}` is not known; expected llama, qwen3, qwen3_moe or glm4_moe", type_));
      return {};
    }
    refuse_what_we_lack();
    auto section = empty_map();
    for (const auto* name : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                             "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings"}) {
      copy(section, name, name);
    }
    // Llama shares no key heads unless told; the others' classes have numbers of their own there, never left out.
    if (qwen && type_ == "qwen3" && !root_.contains("head_dim")) put(section, "head_dim", "128");
    copy(section, "rope_theta", "rope_theta");
    copy(section, "partial_rotary_factor", "partial_rotary_factor", glm ? "0.5" : "1.0");
    if (const auto& rope = field("rope_parameters"); rope.is_object()) {
      copy_from(rope, section, "rope_theta");
      copy_from(rope, section, "partial_rotary_factor");
    }
    copy(section, "rms_norm_eps", "rms_norm_eps", glm ? "1e-5" : "1e-6");
    put(section, "use_qk_norm", qwen ? "true" : "false");
    if (glm) copy(section, "use_qk_norm", "use_qk_norm");
    copy(section, "attention_bias", "attention_bias", "false");
    copy(section, "tie_word_embeddings", "tie_word_embeddings", "false");
    copy(section, "initializer_range", "initializer_range", "0.02");
    if (glm) add_child(section, "moe", glm_moe());
    if (type_ == "qwen3_moe") add_child(section, "moe", qwen_moe());
    return section;
  }

 private:
  const json& field(const std::string& name) const {
    static const json none;
    auto found = root_.find(name);
    return found == root_.end() ? none : *found;
  }

  void refuse(const std::string& what) { report_.add(place_, "model.from_hf", what); }

  void refuse_unless(bool fine, const std::string& name, const std::string& instead) {
    if (!fine) refuse(fmt::format("`{}: {}` cannot be honoured; {}", name, field(name).dump(), instead));
  }

  bool absent_or(const std::string& name, const json& value) const {
    return field(name).is_null() || field(name) == value;
  }

  static bool is_plain_rope(const json& rope) {
    if (rope.is_null()) return true;
    if (!rope.is_object()) return false;
    for (const auto* name : {"rope_type", "type"}) {
      auto type = rope.find(name);
      if (type != rope.end() && !type->is_null() && *type != "default") return false;
    }
    // Per-layer-type parameters (a map of maps) are something else, too.
    for (const auto& value : rope) {
      if (value.is_object()) return false;
    }
    return true;
  }

  void refuse_what_we_lack() {
    for (const auto* name : {"rope_scaling", "rope_parameters"}) {
      refuse_unless(is_plain_rope(field(name)), name, "only the default rotary embedding is (null, or type default)");
    }
    bool qwen = type_ != "llama" && type_ != "glm4_moe";
    // Qwen's files carry a window size that use_sliding_window: false (the default) turns off.
    bool windows = qwen ? field("use_sliding_window") == true && !field("sliding_window").is_null()
                        : !field("sliding_window").is_null() && field("use_sliding_window") != false;
    refuse_unless(!windows, "sliding_window", "every layer attends to the whole sequence here");
    if (const auto& layers = field("layer_types"); layers.is_array()) {
      for (const auto& layer : layers) {
        if (layer == "full_attention") continue;
        refuse(fmt::format("layer_types has {}; every layer attends to the whole sequence here", layer.dump()));
        break;
      }
    }
    refuse_unless(absent_or("hidden_act", "silu"), "hidden_act", "only \"silu\" (SwiGLU) is");
    refuse_unless(absent_or("mlp_bias", false), "mlp_bias", "projections of the MLP have no bias here");
    refuse_unless(absent_or("attention_dropout", 0.0), "attention_dropout", "there is no dropout here; set it to 0");
    if (!field("quantization_config").is_null())
      refuse("`quantization_config` cannot be honoured: weights are quantized");
  }

  YamlNode glm_moe() {
    refuse_unless(absent_or("scoring_func", "sigmoid"), "scoring_func", "this model class has sigmoid scores");
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
    refuse_unless(absent_or("decoder_sparse_step", 1), "decoder_sparse_step", "only 1 is");
    auto moe = empty_map();
    copy(moe, "n_routed_experts", field("num_experts").is_null() ? "num_local_experts" : "num_experts");
    copy(moe, "num_experts_per_tok", "num_experts_per_tok", "8");
    put(moe, "n_shared_experts", "0");
    copy(moe, "moe_intermediate_size", "moe_intermediate_size");
    put(moe, "first_k_dense_replace", std::to_string(leading_dense_layers()));
    put(moe, "scoring_func", "softmax");
    copy(moe, "norm_topk_prob", "norm_topk_prob", "false");
    return moe;
  }

  std::size_t leading_dense_layers() {
    const auto& dense = field("mlp_only_layers");
    if (dense.is_null()) return 0;
    for (std::size_t i = 0; i < dense.size(); ++i) {
      if (dense.is_array() && dense[i] == i) continue;
      refuse_unless(false, "mlp_only_layers", "dense layers must be the first ones: [0, 1, ..]");
      return 0;
    }
    return dense.size();
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
                                    : YamlNode::Kind::Scalar;
    node.quoted = value.is_string();
    if (node.kind == YamlNode::Kind::Scalar) node.text = value.is_string() ? value.get<std::string>() : value.dump();
    add_child(map, key, std::move(node));
  }

  void put(YamlNode& map, const std::string& key, const char* plain) { put(map, key, std::string(plain)); }

  void put(YamlNode& map, const std::string& key, const std::string& plain) {
    YamlNode node;
    node.kind = YamlNode::Kind::Scalar;
    node.text = plain;
    add_child(map, key, std::move(node));
  }

  // Null is as good as absent in a config.json.
  void copy_from(const json& from, YamlNode& map, const std::string& name) {
    auto found = from.find(name);
    if (found != from.end() && !found->is_null()) put(map, name, *found);
  }

  void copy(YamlNode& map, const std::string& key, const std::string& name, const char* default_value = nullptr) {
    if (!field(name).is_null()) {
      put(map, key, field(name));
    } else if (default_value != nullptr) {
      put(map, key, default_value);
    }
  }

  json root_;
  Place place_;
  Report& report_;
  std::string type_;
};

}  // namespace

YamlNode read_hugging_face(const std::string& file, const Place& place, Report& report) {
  std::ifstream in(file);
  json root;
  try {
    if (!in) throw std::runtime_error(std::strerror(errno));
    root = json::parse(in);
  } catch (const std::exception& error) {
    report.add(place, "model.from_hf", fmt::format("cannot read {}: {}", file, error.what()));
    return {};
  }
  if (!root.is_object()) {
    report.add(place, "model.from_hf", fmt::format("{} is not a config.json: expected a JSON object", file));
    return {};
  }
  auto from = place;
  from.via = file;
  return Importer(std::move(root), from, report).model();
}

}  // namespace meshard
