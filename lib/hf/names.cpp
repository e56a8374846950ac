#include "hf/names.h"

#include <fmt/format.h>

namespace meshard {

namespace {

constexpr const char* kHead = "lm_head.weight";

class TensorLister {
 public:
  explicit TensorLister(const ModelOptions& model) : model_(model), decoder_(model.decoder) {}

  std::vector<ModelTensor> list() {
    auto hidden = decoder_.hidden_size;
    add("model.embed_tokens.weight", {decoder_.vocab_size, hidden});
    for (std::int64_t layer = 0; layer < decoder_.num_hidden_layers; ++layer) {
      auto prefix = fmt::format("model.layers.{}.", layer);
      add_attention(prefix + "self_attn.");
      if (model_.has_experts(layer)) {
        add_experts(prefix + "mlp.");
      } else {
        add_mlp(prefix + "mlp.", decoder_.intermediate_size);
      }
      add(prefix + "input_layernorm.weight", {hidden});
      add(prefix + "post_attention_layernorm.weight", {hidden});
    }
    add("model.norm.weight", {hidden});
    add(kHead, {decoder_.vocab_size, hidden});
    return std::move(tensors_);
  }

 private:
  void add(std::string fqn, Shape shape) { tensors_.push_back({std::move(fqn), std::move(shape)}); }

  void add_linear(const std::string& prefix, std::int64_t out, std::int64_t in, bool bias) {
    add(prefix + ".weight", {out, in});
    if (bias) add(prefix + ".bias", {out});
  }

  void add_attention(const std::string& prefix) {
    auto hidden = decoder_.hidden_size, head = decoder_.head_dim;
    auto queries = decoder_.num_attention_heads * head, keys = decoder_.num_key_value_heads * head;
    add_linear(prefix + "q_proj", queries, hidden, decoder_.attention_bias);
    add_linear(prefix + "k_proj", keys, hidden, decoder_.attention_bias);
    add_linear(prefix + "v_proj", keys, hidden, decoder_.attention_bias);
    add_linear(prefix + "o_proj", hidden, queries, decoder_.attention_output_bias);
    if (!decoder_.use_qk_norm) return;
    add(prefix + "q_norm.weight", {head});
    add(prefix + "k_norm.weight", {head});
  }

  void add_mlp(const std::string& prefix, std::int64_t width) {
    add_linear(prefix + "gate_proj", width, decoder_.hidden_size, false);
    add_linear(prefix + "up_proj", width, decoder_.hidden_size, false);
    add_linear(prefix + "down_proj", decoder_.hidden_size, width, false);
  }

  void add_experts(const std::string& prefix) {
    auto& moe = *model_.moe;
    auto experts = moe.n_routed_experts, hidden = decoder_.hidden_size, width = moe.moe_intermediate_size;
    add(prefix + "gate.weight", {experts, hidden});
    add(prefix + "gate.e_score_correction_bias", {experts});
    add(prefix + "experts.gate_up_proj", {experts, 2 * width, hidden});
    add(prefix + "experts.down_proj", {experts, hidden, width});
    if (moe.n_shared_experts > 0) add_mlp(prefix + "shared_experts.", moe.n_shared_experts * width);
  }

  const ModelOptions& model_;
  const DecoderOptions& decoder_;
  std::vector<ModelTensor> tensors_;
};

FileTensor part_of_expert(const ModelTensor& stacked, std::int64_t expert, const char* part, std::int64_t first_row,
                          std::int64_t rows) {
  auto experts = stacked.fqn.substr(0, stacked.fqn.rfind('.'));
  auto columns = stacked.shape[2];
  return {fmt::format("{}.{}.{}.weight", experts, expert, part),
          {rows, columns},
          stacked.fqn,
          {{expert, first_row, 0}, {1, rows, columns}}};
}

void add_empty_shared_experts(std::vector<FileTensor>& tensors, const ModelOptions& model) {
  auto hidden = model.decoder.hidden_size;
  for (auto layer = model.first_k_dense_replace; layer < model.decoder.num_hidden_layers; ++layer) {
    auto prefix = fmt::format("model.layers.{}.mlp.shared_experts.", layer);
    for (auto* part : {"gate_proj", "up_proj"}) tensors.push_back({prefix + part + ".weight", {0, hidden}});
    tensors.push_back({prefix + "down_proj.weight", {hidden, 0}});
  }
}

}  // namespace

std::vector<ModelTensor> model_tensors(const ModelOptions& model) {
  return TensorLister(model).list();
}

std::vector<FileTensor> file_tensors(const ModelTensor& tensor) {
  const bool gate_up = tensor.fqn.ends_with(".mlp.experts.gate_up_proj");
  if (!gate_up && !tensor.fqn.ends_with(".mlp.experts.down_proj")) {
    return {{tensor.fqn, tensor.shape, tensor.fqn, whole(tensor.shape)}};
  }
  std::vector<FileTensor> parts;
  auto rows = gate_up ? tensor.shape[1] / 2 : tensor.shape[1];
  for (std::int64_t expert = 0; expert < tensor.shape[0]; ++expert) {
    parts.push_back(part_of_expert(tensor, expert, gate_up ? "gate_proj" : "down_proj", 0, rows));
    if (gate_up) parts.push_back(part_of_expert(tensor, expert, "up_proj", rows, rows));
  }
  return parts;
}

std::vector<FileTensor> exported_tensors(const ModelOptions& model) {
  const bool glm = model.family == ModelFamily::Glm4Moe;
  std::vector<FileTensor> all;
  for (auto& tensor : model_tensors(model)) {
    if (tensor.fqn == kHead && model.decoder.tie_word_embeddings) continue;
    const bool bias = is_expert_bias(tensor.fqn);
    if (bias && !glm) continue;
    for (auto& part : file_tensors(tensor)) {
      if (bias && !model.moe->expert_bias.enabled) part.fqn.clear();
      all.push_back(std::move(part));
    }
  }
  if (glm && model.moe->n_shared_experts == 0) add_empty_shared_experts(all, model);
  return all;
}

bool is_expert_bias(const std::string& fqn) {
  return fqn.ends_with(".mlp.gate.e_score_correction_bias");
}

}  // namespace meshard
