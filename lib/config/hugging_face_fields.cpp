#include "config/hugging_face_fields.h"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "base/json_text.h"

namespace meshard {
namespace {

using nlohmann::json;

class Refusals {
 public:
  Refusals(const HuggingFaceFields& fields, const Place& place, Report& report)
      : fields_(fields), place_(place), report_(report) {}

  void all() {
    check_class();
    check_rope();
    check_window();
    check_layers("layer_types", 0, "", "full_attention");
    expect("hidden_act", "silu");
    expect("mlp_bias", false);
    expect("attention_dropout", 0);
    expect("quantization_config", nullptr);
    if (!fields_.glm()) expect("use_qk_norm", fields_.qwen());
    if (!fields_.has_experts()) return check_layers("mlp_layer_types", fields_.dense_layers(), "dense", "sparse");
    check_experts();
  }

 private:
  void refuse(const std::string& what) { report_.add(place_, "model.from_hf", what); }

  std::string shown(const std::string& name) const {
    constexpr std::size_t kLongest = 80;
    if (!fields_.has(name)) return fmt::format("`{}` (absent)", name);
    auto value = json_text(fields_[name]);
    return fmt::format("`{}: {:.{}}{}`", name, value, kLongest, value.size() > kLongest ? ".." : "");
  }

  void refuse_unless(bool fine, const std::string& name, const std::string& expected) {
    if (!fine) refuse(fmt::format("{} cannot be honoured; expected {}", shown(name), expected));
  }

  void expect(const std::string& name, const json& value) {
    const auto& given = fields_[name];
    refuse_unless(given.is_null() || given == value, name,
                  fmt::format("{}{}", json_text(value), value.is_null() ? "" : " or no such field"));
  }

  void check_class() {
    const auto& classes = fields_["architectures"];
    bool fine = classes.is_null() || classes.is_array();
    for (const auto& name : fine ? classes : json::array()) fine &= name == fields_.model_class();
    refuse_unless(fine, "architectures",
                  fmt::format("[\"{}\"], the class of model_type {}", fields_.model_class(), fields_.type()));
  }

  static bool is_plain_rope(const json& rope, const std::set<std::string>& numbers) {
    if (!rope.is_object()) return rope.is_null();
    for (const auto& [name, value] : rope.items()) {
      const bool type = name == "rope_type" || name == "type";
      if (!value.is_null() && !(type ? value == "default" : numbers.contains(name) && value.is_number())) return false;
    }
    return true;
  }

  void check_rope() {
    const auto &scaling = fields_["rope_scaling"], &rope = fields_["rope_parameters"];
    refuse_unless(is_plain_rope(scaling, {}), "rope_scaling", "null, or nothing but the type default");
    refuse_unless(is_plain_rope(rope, {"rope_theta", "partial_rotary_factor"}), "rope_parameters",
                  "null, or the type default with nothing but rope_theta and partial_rotary_factor");
    refuse_unless(scaling.empty() || rope.empty(), "rope_scaling", "either it or rope_parameters");
    if (!fields_.glm()) expect("partial_rotary_factor", 1);
    if (!rope.is_object()) return;
    if (!fields_.glm()) {
      const auto factor = rope.value("partial_rotary_factor", json());
      refuse_unless(factor.is_null() || factor == 1, "rope_parameters", "partial_rotary_factor 1 or no such field");
    }
    // Transformers 4 reads the outer one, 5 the inner one.
    for (const auto* name : {"rope_theta", "partial_rotary_factor"}) {
      const auto inner = rope.value(name, json());
      refuse_unless(inner.is_null() || fields_[name].is_null() || inner == fields_[name], name,
                    fmt::format("{} as in rope_parameters", json_text(inner)));
    }
  }

  void check_window() {
    const auto& use = fields_["use_sliding_window"];
    // Qwen's windows are off by default, but have a default size.
    const bool off = use.is_null() ? fields_.qwen() : use == false;
    const bool window = fields_.has("sliding_window") ? !fields_["sliding_window"].is_null() : fields_.qwen();
    if (off || !window) return;
    refuse(
        fmt::format("{} with {} cannot be honoured, every layer attends to the whole sequence here; expected "
                    "use_sliding_window false or sliding_window null",
                    shown("use_sliding_window"), shown("sliding_window")));
  }

  /// The first `leading` entries must be `before`, the others `after`.
  void check_layers(const std::string& name, std::size_t leading, const char* before, const char* after) {
    const auto &kinds = fields_[name], &layers = fields_["num_hidden_layers"];
    if (kinds.is_null()) return;
    if (!kinds.is_array() || (layers.is_number_integer() && layers != kinds.size())) {
      return refuse_unless(false, name, fmt::format("a list of num_hidden_layers = {} texts", json_text(layers)));
    }
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const auto* right = i < leading ? before : after;
      if (kinds[i] == right) continue;
      return refuse(fmt::format("`{}` has {} for layer {}, which cannot be honoured; expected \"{}\"", name,
                                json_text(kinds[i]), i, right));
    }
  }

  void check_experts() {
    using Row = std::pair<const char*, json>;
    const auto dense = fields_.dense_layers();
    std::vector<Row> rows = {{"moe_layer_freq", 1}, {"kv_lora_rank", nullptr}, {"q_lora_rank", nullptr}};
    if (fields_.glm()) {
      rows.insert(rows.end(), {{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}});
    } else {
      rows.insert(rows.end(), {{"scoring_func", "softmax"},
                               {"topk_method", "greedy"},
                               {"n_group", 1},
                               {"topk_group", 1},
                               {"n_shared_experts", 0},
                               {"shared_expert_intermediate_size", 0},
                               {"routed_scaling_factor", 1},
                               {"first_k_dense_replace", dense},
                               {"decoder_sparse_step", 1}});
      check_mlp_only_layers(dense);
    }
    for (const auto& [name, value] : rows) expect(name, value);
    check_layers("mlp_layer_types", dense, "dense", "sparse");
    check_expert_count();
  }

  void check_mlp_only_layers(std::size_t dense) {
    auto first = json::array();
    for (std::size_t i = 0; i < dense; ++i) first.push_back(i);
    const auto& given = fields_["mlp_only_layers"];
    refuse_unless(given.is_null() || given == first, "mlp_only_layers", "the first layers: [0, 1, ..]");
  }

  void check_expert_count() {
    const char* first = nullptr;
    for (const auto* name : {"n_routed_experts", "num_experts", "num_local_experts"}) {
      if (fields_[name].is_null()) continue;
      if (first == nullptr) {
        first = name;
      } else {
        refuse_unless(fields_[name] == fields_[first], name, fmt::format("as many as {} has", shown(first)));
      }
    }
  }

  const HuggingFaceFields& fields_;
  const Place& place_;
  Report& report_;
};

}  // namespace

HuggingFaceFields::HuggingFaceFields(json root) : root_(std::move(root)) {
  const auto& type = (*this)["model_type"];
  type_ = type.is_string() ? type.get<std::string>() : has("model_type") ? "(not a text)" : "(none)";
}

std::string HuggingFaceFields::model_class() const {
  if (type_ == "llama") return "LlamaForCausalLM";
  if (type_ == "qwen3") return "Qwen3ForCausalLM";
  if (type_ == "qwen3_moe") return "Qwen3MoeForCausalLM";
  return glm() ? "Glm4MoeForCausalLM" : "";
}

const json& HuggingFaceFields::operator[](const std::string& name) const {
  static const json none;
  auto found = root_.find(name);
  return found == root_.end() ? none : *found;
}

std::size_t HuggingFaceFields::dense_layers() const {
  if (!has_experts()) return std::numeric_limits<std::size_t>::max();
  if (!glm()) return (*this)["mlp_only_layers"].is_array() ? (*this)["mlp_only_layers"].size() : 0;
  const auto& first = (*this)["first_k_dense_replace"];
  return first.is_number_unsigned() ? first.get<std::size_t>() : 1;
}

void refuse_what_we_lack(const HuggingFaceFields& fields, const Place& place, Report& report) {
  Refusals(fields, place, report).all();
}

}  // namespace meshard
