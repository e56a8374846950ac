// Computes what hugging_face_models.py asks for: in each FOLDER it reads config.json, all_fields.json, case.json and
// weights.bin, and writes meshard.json, of the form of expected.json there. For export.py, case.json names a
// "checkpoint" and nothing else is read; with "rounded", its weights become what bf16 files hold.
//   interop_hf_logits FOLDER...

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "checkpoint/load.h"
#include "model/build.h"

using namespace meshard;
using nlohmann::json;

namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw IoError(fmt::format("cannot read {}", path.string()));
  return {std::istreambuf_iterator<char>(in), {}};
}

template <typename T>
json rows_of(const at::Tensor& matrix) {
  auto whole = matrix.contiguous();
  auto rows = json::array();
  for (std::int64_t i = 0; i < whole.size(0); ++i) {
    auto* row = whole.const_data_ptr<T>() + i * whole.size(1);
    rows.push_back(std::vector<T>(row, row + whole.size(1)));
  }
  return rows;
}

/// Asks the layer's router what it makes of the layer's input.
class RoutingProbe : public ModuleHooks {
 public:
  RoutingProbe(MoeLayer& layer, json& routing) : layer_(layer), routing_(routing) {}

  at::Tensor pre_forward(const at::Tensor& input) override {
    auto [ids, weights] = layer_.router().route(input.reshape({-1, input.size(2)}), input.size(1));
    routing_.push_back(
        {{"layer", layer_.layer()}, {"ids", rows_of<std::int64_t>(ids)}, {"weights", rows_of<float>(weights)}});
    return input;
  }
  at::Tensor post_forward(const at::Tensor& output) override { return output; }

 private:
  MoeLayer& layer_;
  json& routing_;
};

/// The tensors of a model under Hugging Face's names: those of one expert are rows of ours.
class Weights {
 public:
  explicit Weights(Model& model) {
    for (auto& [fqn, parameter] : named_parameters(*model.lm)) places_[fqn] = parameter.slot().tensor;
    if (!model.moe) return;
    experts_ = model.moe->options().n_routed_experts;
    if (!model.moe->options().expert_bias.enabled) return;
    for (auto* layer : model.moe->list()) {
      places_[fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", layer->layer())] = layer->router().bias();
    }
  }

  /// IoError for a name or shape that the model does not have, and a value that comes twice.
  void fill(const std::string& name, const at::Tensor& value) {
    auto place = place_of(name);
    if (!place.defined() || place.sizes() != value.sizes() || !filled_.insert(place.data_ptr()).second) {
      throw IoError(fmt::format(
          "{} [{}]: the model has {}", name, fmt::join(value.sizes(), ", "),
          place.defined() ? fmt::format("[{}] of it, once", fmt::join(place.sizes(), ", ")) : "no such tensor"));
    }
    place.copy_(value);
    elements_ += value.numel();
  }

  /// Every tensor, from "model.NAME" of a checkpoint: stacked experts have a dimension for the expert there.
  void read(const CheckpointReader& reader, bool rounded) {
    for (auto& [name, place] : places_) {
      StateTensor tensor;
      tensor.key = "model." + name;
      tensor.shape = place.sizes().vec();
      if (name.find(".mlp.experts.") != std::string::npos) {
        tensor.shape = {experts_, place.size(0) / experts_, place.size(1)};
      }
      tensor.pieces = {{whole(tensor.shape), place.view(tensor.shape)}};
      reader.read(tensor);
      const bool stays = !rounded || name.ends_with("e_score_correction_bias");
      if (!stays) place.copy_(place.to(at::kBFloat16));
    }
  }

  /// IoError if something was not filled.
  void require_complete() const {
    std::map<const void*, std::int64_t> sizes;
    for (auto& [name, tensor] : places_) sizes[tensor.data_ptr()] = tensor.numel();
    std::int64_t all = 0;
    for (auto& [pointer, numel] : sizes) all += numel;
    if (all != elements_) throw IoError(fmt::format("{} of the model's {} elements have values", elements_, all));
  }

 private:
  at::Tensor place_of(const std::string& name) const {
    auto at = name.find(".mlp.experts.");
    if (at == std::string::npos) return places_.contains(name) ? places_.at(name) : at::Tensor();
    auto prefix = name.substr(0, at + 13), rest = name.substr(at + 13);
    auto expert = std::stoll(rest);
    auto part = rest.substr(rest.find('.') + 1);
    if (part == "down_proj.weight") return places_.at(prefix + "down_proj").chunk(experts_)[expert];
    auto pair = places_.at(prefix + "gate_up_proj").chunk(experts_)[expert].chunk(2);
    return part == "gate_proj.weight" ? pair[0] : part == "up_proj.weight" ? pair[1] : at::Tensor();
  }

  std::map<std::string, at::Tensor> places_;
  std::int64_t experts_ = 0, elements_ = 0;
  std::set<const void*> filled_;
};

Config config_of(const std::filesystem::path& file) {
  return parse_config(fmt::format("schema: 1\nmodel: {{from_hf: \"{}\"}}\ndata: {{type: synthetic}}\n"
                                  "train: {{steps: 1, global_batch_size: 1, seq_len: 32}}\n",
                                  file.string()),
                      "hf_logits.cpp", {}, 1);
}

Model model_of_files(const std::filesystem::path& folder, const json& request) {
  auto config = config_of(folder / "config.json");
  if (config_of(folder / "all_fields.json") != config) {
    throw IoError(fmt::format("{}: config.json and all_fields.json are of different models", folder.string()));
  }
  auto model = build_model(config, at::kCPU, {});
  auto data = read(folder / "weights.bin");
  Weights weights(model);
  for (auto& tensor : request["tensors"]) {
    auto shape = tensor["shape"].get<Shape>();
    auto* begin = data.data() + sizeof(float) * tensor["offset"].get<std::int64_t>();
    auto value = at::from_blob(begin, shape, at::kFloat);
    if (value.numel() > 0) weights.fill(tensor["name"], value);  // no shared experts: of zero width
  }
  weights.require_complete();
  return model;
}

Model model_of_checkpoint(const json& request) {
  const CheckpointReader reader(posix_file_system(), request["checkpoint"].get<std::string>());
  auto config = parse_config(reader.extra()["config"], "meshard.json", {}, reader.extra()["ranks"]);
  auto model = build_model(config, at::kCPU, {});
  Weights(model).read(reader, request.contains("rounded"));
  return model;
}

void run(const std::filesystem::path& folder) {
  auto request = json::parse(read(folder / "case.json"));
  auto model = request.contains("checkpoint") ? model_of_checkpoint(request) : model_of_files(folder, request);
  json result = {{"routing", json::array()}};
  if (model.moe) {
    for (auto* layer : model.moe->list()) layer->set_hooks(std::make_unique<RoutingProbe>(*layer, result["routing"]));
  }
  auto ids = request["input_ids"].get<std::vector<std::int64_t>>();
  auto batch = at::from_blob(ids.data(), request["input_shape"].get<Shape>(), at::kLong);
  result["logits"] = rows_of<float>(model.lm->logits(batch).reshape({1, -1}))[0];
  std::ofstream(folder / "meshard.json") << result;
}

}  // namespace

int main(int argc, char** argv) {
  const at::NoGradGuard no_grad;
  try {
    for (int i = 1; i < argc; ++i) run(argv[i]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "interop_hf_logits: {}\n", error.what());
    return 1;
  }
  return 0;
}
