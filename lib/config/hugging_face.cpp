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
    auto section = empty_map(), moe = empty_map();
    for (auto& field : fields_.family().fields) {
      constexpr std::string_view kMoe = "moe.";
      const bool of_moe = field.key.starts_with(kMoe);
      if (!field.key.empty()) copy(of_moe ? moe : section, field.key.substr(of_moe ? kMoe.size() : 0), field);
    }
    copy_heads(section);
    if (auto& rope = fields_["rope_parameters"]; rope.is_object()) {
      copy_from(rope, section, "rope_theta");
      copy_from(rope, section, "partial_rotary_factor");
    }
    if (fields_.family().info().experts && !fields_.has("n_routed_experts") && !fields_.has("num_experts") &&
        !fields_.has("num_local_experts")) {
      put(moe, "n_routed_experts", 128);
    }
    if (fields_.family().info().experts && !fields_.glm()) {
      auto* count = fields_["num_experts"].is_null() ? "num_local_experts" : "num_experts";
      if (fields_.has(count)) put(moe, "n_routed_experts", fields_[count]);
      put(moe, "first_k_dense_replace", fields_.dense_layers());
    }
    if (fields_.family().info().experts) add_child(section, "moe", std::move(moe));
    return section;
  }

 private:
  // Left out: as many key-value heads as heads, of hidden_size / heads each. Classes with experts take no null.
  void copy_heads(YamlNode& section) {
    const bool qwen = fields_.family().family == ModelFamily::Qwen3;
    auto& shared = fields_["num_key_value_heads"];
    if (!shared.is_null() && !fields_.family().info().experts) {
      put(section, "num_key_value_heads", shared);
    } else if (qwen && !fields_.has("num_key_value_heads")) {
      put(section, "num_key_value_heads", 32);
    }
    if (fields_.has("head_dim")) {
      if (fields_.family().family != ModelFamily::Llama || !fields_["head_dim"].is_null())
        put(section, "head_dim", fields_["head_dim"]);
    } else if (qwen) {
      put(section, "head_dim", 128);
    }
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

  void copy_from(const json& from, YamlNode& map, const std::string& name) {
    auto found = from.find(name);
    if (found != from.end() && !found->is_null()) put(map, name, *found);
  }

  // A null is no default: the key that it becomes refuses it, as the newer classes do.
  void copy(YamlNode& map, std::string_view key, const HuggingFaceField& field) {
    const std::string name(field.name);
    if (field.use == HuggingFaceField::Use::Fixed) {
      put(map, std::string(key), field.accepted.front());
    } else if (fields_.has(name)) {
      put(map, std::string(key), fields_[name]);
    } else if (!field.default_value.is_null()) {
      put(map, std::string(key), field.default_value);
    }
  }

  const HuggingFaceFields& fields_;
  const Place& place_;
};

}  // namespace

std::optional<YamlNode> read_hugging_face(const std::string& file, const std::string& key, const Place& place,
                                          Report& report) {
  auto refuse = [&](const std::string& why) { report.add(place, key, why); };
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
        from, key,
        fmt::format("model_type `{}` is not known; expected llama, qwen3, qwen3_moe or glm4_moe", fields.type()));
    return {};
  }
  refuse_what_we_lack(fields, key, from, report);
  return Importer(fields, from).model();
}

}  // namespace meshard
