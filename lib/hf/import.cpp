#include "hf/import.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json_text.h"
#include "checkpoint/load.h"
#include "hf/names.h"

namespace meshard {

namespace {

constexpr std::string_view kStatePrefix = "model.";
constexpr const char* kTiedHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr std::string_view kLayers = "model.layers.";
constexpr std::uint64_t kMostLayers = 1'000'000;  // so that sums of two do not overflow

struct LayerRange {
  std::int64_t begin = 0, end = 0;
};

// Layers that the files have after those of the class: they predict further tokens, and the class does not load them.
LayerRange prediction_layers(const Safetensors& from) {
  auto text = from.text_of("config.json");
  if (text.empty()) return {};
  auto config = read_json<nlohmann::json>(text, (from.path() / "config.json").string() + " is damaged");
  auto number = [&](const char* name) {
    auto found = config.find(name);
    const bool given = found != config.end() && found->is_number_unsigned();
    return given ? static_cast<std::int64_t>(std::min(found->get<std::uint64_t>(), kMostLayers)) : 0;
  };
  auto begin = number("num_hidden_layers");
  return {begin, begin + number("num_nextn_predict_layers")};
}

bool is_of_layers(const std::string& name, const LayerRange& layers) {
  if (!name.starts_with(kLayers)) return false;
  std::int64_t layer = -1;
  auto* end = name.data() + name.size();
  auto [rest, error] = std::from_chars(name.data() + kLayers.size(), end, layer);
  return error == std::errc() && rest != end && *rest == '.' && layer >= layers.begin && layer < layers.end;
}

class Import {
 public:
  Import(const Safetensors& from, const ModelOptions& model, const StateDict& into)
      : from_(from), model_(model), prediction_layers_(prediction_layers(from)) {
    for (auto& tensor : into.tensors) {
      if (tensor.key.starts_with(kStatePrefix)) plan(tensor);
    }
    for (auto& [name, entry] : from_.tensors()) {
      if (!claimed_.contains(name)) judge_unclaimed(name, entry);
    }
  }

  void require_fit() const {
    if (mismatch_.empty()) return;
    throw IoError(
        fmt::format("the weights in {} are not those of this model:{}", from_.path().string(), mismatch_.text()));
  }

  void read() const {
    for (auto& [tensor, parts] : sources_) {
      for (auto& piece : tensor->pieces) fill(piece, parts);
    }
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    for (auto& [dtypes, count] : converted_) {
      notes.push_back(fmt::format("{} tensors were converted from {} to {}", count, safetensors_name(dtypes.first),
                                  safetensors_name(dtypes.second)));
    }
    if (absent_biases_ > 0) {
      notes.push_back(fmt::format("{} has no expert bias for {} layers: it keeps its declared value, {}",
                                  from_.path().string(), absent_biases_, model_.moe->expert_bias.initial));
    }
    if (of_prediction_ > 0) {
      notes.push_back(fmt::format("{} tensors of multi-token-prediction layers were left out: this model has none",
                                  of_prediction_));
    }
    return notes;
  }

 private:
  bool bias_is_off() const { return !model_.moe || !model_.moe->expert_bias.enabled; }

  void plan(const StateTensor& tensor) {
    auto fqn = tensor.key.substr(kStatePrefix.size());
    if (model_.decoder.tie_word_embeddings && fqn == kTiedHead) return;  // it is the embedding's memory
    if (is_expert_bias(fqn)) {
      if (bias_is_off()) return;
      if (!from_.has(fqn)) {
        ++absent_biases_;
        return;
      }
    }
    std::vector<FileTensor> parts;
    if (from_.has(fqn)) {  // experts: stacked
      parts.push_back({fqn, tensor.shape, fqn, whole(tensor.shape)});
    } else {
      parts = file_tensors({fqn, tensor.shape});
    }
    for (auto& part : parts) claim(part, tensor.dtype);
    sources_.emplace_back(&tensor, std::move(parts));
  }

  void claim(const FileTensor& part, at::ScalarType dtype) {
    claimed_.insert(part.name);
    auto found = from_.tensors().find(part.name);
    if (found == from_.tensors().end()) {
      mismatch_.missing.push_back(part.name);
    } else if (found->second.shape != part.shape) {
      mismatch_.shapes.push_back(fmt::format("{}: [{}] in the file, [{}] wanted", part.name,
                                             fmt::join(found->second.shape, ", "), fmt::join(part.shape, ", ")));
    } else if (found->second.dtype != dtype) {
      ++converted_[{found->second.dtype, dtype}];
    }
  }

  void judge_unclaimed(const std::string& name, const SafetensorsEntry& entry) {
    if (is_of_layers(name, prediction_layers_)) {
      ++of_prediction_;
      return;
    }
    if (name.ends_with("rotary_emb.inv_freq")) return;
    if (entry.length == 0 && name.find(".mlp.shared_experts.") != std::string::npos) return;
    if (is_expert_bias(name) && bias_is_off()) {
      if (!is_zero(name, entry)) mismatch_.unexpected.push_back(name + " (not zero, but expert_bias is off)");
    } else if (name == kTiedHead && model_.decoder.tie_word_embeddings && from_.has(kEmbedding)) {
      if (!from_.same(name, kEmbedding))
        mismatch_.unexpected.push_back(name + " (not the embedding that it is tied to)");
    } else {
      mismatch_.unexpected.push_back(name);
    }
  }

  bool is_zero(const std::string& name, const SafetensorsEntry& entry) const {
    auto values = at::empty(entry.shape, at::kFloat);
    from_.read(name, whole(entry.shape), values);
    const std::span all(values.const_data_ptr<float>(), static_cast<std::size_t>(values.numel()));
    return std::ranges::all_of(all, [](float value) { return value == 0.0f; });
  }

  void fill(const Piece& piece, const std::vector<FileTensor>& parts) const {
    auto host =
        piece.values.is_cpu() ? piece.values : at::empty(piece.values.sizes(), piece.values.options().device(at::kCPU));
    for (auto& part : parts) {
      auto shared = overlap(piece.box, part.box);
      if (shared.numel() == 0) continue;
      auto from = shifted(shared, part.box.offsets);
      auto into = part_of(host, shifted(shared, piece.box.offsets));
      if (part.shape.size() < part.box.sizes.size()) {  // one expert of the stack
        from.offsets.erase(from.offsets.begin());
        from.sizes.erase(from.sizes.begin());
        into = into.select(0, 0);
      }
      from_.read(part.name, from, into);
    }
    if (!host.is_same(piece.values)) piece.values.copy_(host);
  }

  const Safetensors& from_;
  const ModelOptions& model_;
  std::vector<std::pair<const StateTensor*, std::vector<FileTensor>>> sources_;
  std::set<std::string> claimed_;
  Mismatch mismatch_;
  std::map<std::pair<at::ScalarType, at::ScalarType>, int> converted_;
  LayerRange prediction_layers_;
  int absent_biases_ = 0, of_prediction_ = 0;
};

}  // namespace

std::vector<std::string> import_weights(const Safetensors& from, const ModelOptions& model, const StateDict& into) {
  const Import import(from, model, into);
  import.require_fit();
  import.read();
  return import.notes();
}

}  // namespace meshard
