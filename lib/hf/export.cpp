#include "hf/export.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/json_text.h"
#include "hf/config_out.h"
#include "hf/names.h"

namespace meshard {

namespace {

constexpr const char* kWeights = "model.";

/// Tensors that a checkpoint of the model may lack, as its class has no use for them.
bool is_spare(const std::string& fqn, const ModelOptions& model) {
  return (model.decoder.tie_word_embeddings && fqn == "lm_head.weight") ||
         (is_expert_bias(fqn) && !model.moe->expert_bias.enabled);
}

void require_fit(const CheckpointReader& from, const ModelOptions& model) {
  auto mismatch = fit_of(from, model);
  if (mismatch.empty()) return;
  throw IoError(fmt::format("{} is not a checkpoint of this model:{}", from.folder().string(), mismatch.text()));
}

at::Tensor values_of(const CheckpointReader& from, const FileTensor& part, const ModelTensor* whole,
                     at::ScalarType dtype) {
  if (whole == nullptr) return at::zeros(part.shape, dtype);
  StateTensor tensor;
  tensor.key = kWeights + whole->fqn;
  tensor.dtype = dtype;
  tensor.shape = whole->shape;
  tensor.pieces = {{part.box, at::empty(part.box.sizes, dtype)}};
  from.read(tensor);
  return tensor.pieces[0].values.view(part.shape);
}

}  // namespace

Mismatch fit_of(const CheckpointReader& from, const ModelOptions& model) {
  StateDict wanted;
  for (auto& [fqn, shape] : model_tensors(model)) {
    auto key = kWeights + fqn;
    if (is_spare(fqn, model) && !from.metadata().tensors.contains(key)) continue;
    StateTensor tensor;
    tensor.key = key;
    tensor.shape = shape;
    wanted.tensors.push_back(std::move(tensor));
  }
  return from.compare(wanted, kWeights);
}

std::vector<std::string> export_model(const CheckpointReader& from, const ModelOptions& model, FileSystem& files,
                                      const std::filesystem::path& out, const ExportOptions& options) {
  if (options.dtype != at::kFloat && options.dtype != at::kBFloat16) {
    throw ArgumentError(fmt::format("export as {}: only fp32 and bf16 are", c10::toString(options.dtype)));
  }
  auto config = hf_config(model, options.dtype);
  require_fit(from, model);

  std::map<std::string, ModelTensor> ours;
  for (auto& tensor : model_tensors(model)) ours[tensor.fqn] = tensor;
  auto parts = exported_tensors(model);
  std::vector<SafetensorsItem> items;
  for (auto& part : parts) {
    items.push_back({part.name, is_expert_bias(part.name) ? at::kFloat : options.dtype, part.shape});
  }
  auto values = [&](std::size_t i) {
    return values_of(from, parts[i], parts[i].fqn.empty() ? nullptr : &ours.at(parts[i].fqn), items[i].dtype);
  };
  write_safetensors(files, out, items, values, {{"config.json", json_text(config.json, 2) + "\n"}},
                    options.shard_bytes);
  return config.warnings;
}

}  // namespace meshard
