#include "config/words.h"

#include <algorithm>

namespace meshard {

Words<Strategy> words_of(Strategy) {
  return {{"ddp", Strategy::Ddp},   {"zero1", Strategy::Zero1}, {"zero2", Strategy::Zero2},
          {"fsdp", Strategy::Fsdp}, {"hsdp", Strategy::Hsdp},   {"hfsdp", Strategy::Hfsdp}};
}

Words<Dtype> words_of(Dtype) {
  return {{"fp32", Dtype::Fp32}, {"bf16", Dtype::Bf16}};
}

Words<MoeConfig::Scoring> words_of(MoeConfig::Scoring) {
  return {{"sigmoid", MoeConfig::Scoring::Sigmoid}, {"softmax", MoeConfig::Scoring::Softmax}};
}

Words<AuxLossConfig::Type> words_of(AuxLossConfig::Type) {
  using enum AuxLossConfig::Type;
  return {{"none", None}, {"switch", Switch}, {"sequence", Sequence}};
}

Words<InitConfig::Device> words_of(InitConfig::Device) {
  return {{"meta", InitConfig::Device::Meta}, {"cpu", InitConfig::Device::Cpu}};
}

Words<TrainConfig::Checkpointing> words_of(TrainConfig::Checkpointing) {
  return {{"none", TrainConfig::Checkpointing::None}, {"full", TrainConfig::Checkpointing::Full}};
}

Words<OptimizerConfig::Type> words_of(OptimizerConfig::Type) {
  return {{"adamw", OptimizerConfig::Type::AdamW}, {"sgd", OptimizerConfig::Type::Sgd}};
}

Words<LrScheduleConfig::Type> words_of(LrScheduleConfig::Type) {
  using enum LrScheduleConfig::Type;
  return {{"constant", Constant}, {"linear", Linear}, {"cosine", Cosine}, {"wsd", Wsd}};
}

Words<DataConfig::Type> words_of(DataConfig::Type) {
  using enum DataConfig::Type;
  return {{"text", Text}, {"indexed", Indexed}, {"synthetic", Synthetic}};
}

Words<DataConfig::OnChange> words_of(DataConfig::OnChange) {
  return {{"stop", DataConfig::OnChange::Stop}, {"warn", DataConfig::OnChange::Warn}};
}

Words<CheckpointConfig::OnError> words_of(CheckpointConfig::OnError) {
  return {{"stop", CheckpointConfig::OnError::Stop}, {"continue", CheckpointConfig::OnError::Continue}};
}

Words<HealthConfig::OnNonfinite> words_of(HealthConfig::OnNonfinite) {
  return {{"stop", HealthConfig::OnNonfinite::Stop}, {"skip", HealthConfig::OnNonfinite::Skip}};
}

Words<CommConfig::Backend> words_of(CommConfig::Backend) {
  using enum CommConfig::Backend;
  return {{"auto", Auto}, {"mpi", Mpi}, {"nccl", Nccl}};
}

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      int change = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

bool is_slip(int distance, std::size_t length) {
  return distance <= std::max<int>(1, static_cast<int>(length) / 3);
}

std::optional<std::string_view> nearest_word(std::string_view text, const std::vector<std::string_view>& words) {
  if (words.empty()) return {};
  auto nearest = *std::ranges::min_element(words, {}, [&](auto word) { return edit_distance(text, word); });
  if (!is_slip(edit_distance(text, nearest), text.size())) return {};
  return nearest;
}

}  // namespace meshard
