#include "config/hugging_face_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
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
  Refusals(const HuggingFaceFields& fields, const std::string& key, const Place& place, Report& report)
      : fields_(fields), key_(key), place_(place), report_(report) {}

  void all() {
    for (auto& [name, value] : fields_.all().items()) check_field(name, value);
    check_class();
    check_rope();
    check_window();
    check_layers("layer_types", 0, "", "full_attention");
    check_layers("mlp_layer_types", fields_.dense_layers(), "dense", "sparse");
    if (!fields_.family().info().experts) return;
    check_expert_count();
    if (fields_.glm()) return;
    check_mlp_only_layers();
  }

 private:
  void refuse(const std::string& what) { report_.add(place_, key_, what); }

  std::string shown(const std::string& name) const {
    constexpr std::size_t kLongest = 80;
    if (!fields_.has(name)) return fmt::format("`{}` (absent)", name);
    auto value = json_text(fields_[name]);
    return fmt::format("`{}: {:.{}}{}`", name, value, kLongest, value.size() > kLongest ? ".." : "");
  }

  void refuse_unless(bool fine, const std::string& name, const std::string& expected) {
    if (!fine) refuse(fmt::format("{} cannot be honoured; expected {}", shown(name), expected));
  }

  void check_field(const std::string& name, const json& value) {
    auto* field = fields_.family().find(name);
    if (field == nullptr) {
      return refuse(
          fmt::format("{} is not known of a {}, and may change what the model computes; take it out of the file if it "
                      "does not",
                      shown(name), fields_.type()));
    }
    if (field->use != HuggingFaceField::Use::Fixed || std::ranges::count(field->accepted, value) > 0) return;
    std::string expected;
    for (auto& accepted : field->accepted) expected += json_text(accepted) + " or ";
    refuse_unless(false, name, expected + "no such field");
  }

  void check_class() {
    auto& classes = fields_["architectures"];
    bool fine = classes.is_null() || classes.is_array();
    for (auto& name : fine ? classes : json::array()) fine &= name == fields_.family().info().model_class;
    refuse_unless(
        fine, "architectures",
        fmt::format("[\"{}\"], the class of model_type {}", fields_.family().info().model_class, fields_.type()));
  }

  static bool is_plain_rope(const json& rope, const std::set<std::string>& numbers) {
    if (!rope.is_object()) return rope.is_null();
    return std::ranges::all_of(rope.items(), [&](const auto& item) {
      const bool type = item.key() == "rope_type" || item.key() == "type";
      return type ? item.value() == "default" : numbers.contains(item.key()) && item.value().is_number();
    });
  }

  void check_rope() {
    auto &scaling = fields_["rope_scaling"], &rope = fields_["rope_parameters"];
    const bool empty = scaling.is_object() && scaling.empty();  // transformers 4 misses the type
    refuse_unless(!empty && is_plain_rope(scaling, {}), "rope_scaling", "null, or nothing but the type default");
    refuse_unless(is_plain_rope(rope, {"rope_theta", "partial_rotary_factor"}), "rope_parameters",
                  "null, or the type default with nothing but rope_theta and partial_rotary_factor");
    refuse_unless(scaling.empty() || rope.empty(), "rope_scaling", "either it or rope_parameters");
    if (!rope.is_object()) return;
    if (!fields_.glm()) {
      auto factor = rope.value("partial_rotary_factor", json());
      refuse_unless(factor.is_null() || factor == 1, "rope_parameters", "partial_rotary_factor 1 or no such field");
    }
    if (fields_.of_transformers_5()) return;
    for (auto* name : {"rope_theta", "partial_rotary_factor"}) {
      auto inner = rope.value(name, json());
      refuse_unless(inner.is_null() || fields_[name].is_null() || inner == fields_[name], name,
                    fmt::format("{} as in rope_parameters, or a transformers_version of 5, which says that those hold",
                                json_text(inner)));
    }
  }

  void check_window() {
    auto& use = fields_["use_sliding_window"];
    if (fields_.qwen() && fields_.has("use_sliding_window") && use.is_null()) {
      return refuse_unless(false, "use_sliding_window", "true, false or no such field");
    }
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
    auto &kinds = fields_[name], &layers = fields_["num_hidden_layers"];
    if (kinds.is_null()) return;
    if (!kinds.is_array() || (layers.is_number_integer() && layers != kinds.size())) {
      return refuse_unless(false, name, fmt::format("a list of num_hidden_layers = {} texts", json_text(layers)));
    }
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      auto* right = i < leading ? before : after;
      if (kinds[i] == right) continue;
      return refuse(fmt::format("`{}` has {} for layer {}, which cannot be honoured; expected \"{}\"", name,
                                json_text(kinds[i]), i, right));
    }
  }

  void check_mlp_only_layers() {
    auto first = json::array();
    for (std::size_t i = 0; i < fields_.dense_layers(); ++i) first.push_back(i);
    auto& given = fields_["mlp_only_layers"];
    refuse_unless(given.is_null() || given == first, "mlp_only_layers", "the first layers: [0, 1, ..]");
    auto& replaced = fields_["first_k_dense_replace"];
    refuse_unless(replaced.is_null() || replaced == first.size(), "first_k_dense_replace",
                  fmt::format("{} or no such field", first.size()));
  }

  void check_expert_count() {
    const char* first = nullptr;
    for (auto* name : {"n_routed_experts", "num_experts", "num_local_experts"}) {
      if (fields_[name].is_null()) continue;
      if (first == nullptr) {
        first = name;
      } else {
        refuse_unless(fields_[name] == fields_[first], name, fmt::format("as many as {} has", shown(first)));
      }
    }
  }

  const HuggingFaceFields& fields_;
  const std::string& key_;
  const Place& place_;
  Report& report_;
};

}  // namespace

HuggingFaceFields::HuggingFaceFields(json root) : root_(std::move(root)) {
  auto& type = (*this)["model_type"];
  type_ = type.is_string() ? type.get<std::string>() : has("model_type") ? "(not a text)" : "(none)";
  auto& families = hugging_face_families();
  auto found = std::ranges::find_if(families, [&](auto& family) { return family.info().model_type == type_; });
  if (found != families.end()) family_ = &*found;
}

const json& HuggingFaceFields::operator[](const std::string& name) const {
  static const json none;
  auto found = root_.find(name);
  return found == root_.end() ? none : *found;
}

std::size_t HuggingFaceFields::dense_layers() const {
  if (!family_->info().experts) return std::numeric_limits<std::size_t>::max();
  if (!glm()) return (*this)["mlp_only_layers"].is_array() ? (*this)["mlp_only_layers"].size() : 0;
  auto& first = (*this)["first_k_dense_replace"];
  return first.is_number_unsigned() ? first.get<std::size_t>() : 1;
}

bool HuggingFaceFields::of_transformers_5() const {
  auto& version = (*this)["transformers_version"];
  return version.is_string() && std::atoi(version.get_ref<const std::string&>().c_str()) >= 5;
}

void refuse_what_we_lack(const HuggingFaceFields& fields, const std::string& key, const Place& place, Report& report) {
  Refusals(fields, key, place, report).all();
}

}  // namespace meshard
