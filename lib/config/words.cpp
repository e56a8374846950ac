#include "config/words.h"

#include <algorithm>

namespace meshard {

// Each switch names every value, so that a compiler warns of a new one that has no word.

std::string_view word_of(Strategy value) {
  auto index = static_cast<std::size_t>(value);
  return index < kStrategyNames.size() ? kStrategyNames[index] : "";
}

std::string_view word_of(Dtype value) {
  switch (value) {
    using enum Dtype;
    case Fp32:
      return "fp32";
    case Bf16:
      return "bf16";
  }
  return "";
}

std::string_view word_of(MoeConfig::Scoring value) {
  switch (value) {
    using enum MoeConfig::Scoring;
    case Sigmoid:
      return "sigmoid";
    case Softmax:
      return "softmax";
  }
  return "";
}

std::string_view word_of(AuxLossConfig::Type value) {
  switch (value) {
    using enum AuxLossConfig::Type;
    case None:
      return "none";
    case Switch:
      return "switch";
    case Sequence:
      return "sequence";
  }
  return "";
}

std::string_view word_of(InitConfig::Device value) {
  switch (value) {
    using enum InitConfig::Device;
    case Meta:
      return "meta";
    case Cpu:
      return "cpu";
  }
  return "";
}

std::string_view word_of(TrainConfig::Checkpointing value) {
  switch (value) {
    using enum TrainConfig::Checkpointing;
    case None:
      return "none";
    case Full:
      return "full";
  }
  return "";
}

std::string_view word_of(OptimizerConfig::Type value) {
  switch (value) {
    using enum OptimizerConfig::Type;
    case AdamW:
      return "adamw";
    case Sgd:
      return "sgd";
  }
  return "";
}

std::string_view word_of(LrScheduleConfig::Type value) {
  switch (value) {
    using enum LrScheduleConfig::Type;
    case Constant:
      return "constant";
    case Linear:
      return "linear";
    case Cosine:
      return "cosine";
    case Wsd:
      return "wsd";
  }
  return "";
}

std::string_view word_of(DataConfig::Type value) {
  switch (value) {
    using enum DataConfig::Type;
    case Text:
      return "text";
    case Indexed:
      return "indexed";
    case Synthetic:
      return "synthetic";
  }
  return "";
}

std::string_view word_of(DataConfig::OnChange value) {
  switch (value) {
    using enum DataConfig::OnChange;
    case Stop:
      return "stop";
    case Warn:
      return "warn";
  }
  return "";
}

std::string_view word_of(CheckpointConfig::OnError value) {
  switch (value) {
    using enum CheckpointConfig::OnError;
    case Stop:
      return "stop";
    case Continue:
      return "continue";
  }
  return "";
}

std::string_view word_of(HealthConfig::OnNonfinite value) {
  switch (value) {
    using enum HealthConfig::OnNonfinite;
    case Stop:
      return "stop";
    case Skip:
      return "skip";
  }
  return "";
}

std::string_view word_of(CommConfig::Backend value) {
  switch (value) {
    using enum CommConfig::Backend;
    case Auto:
      return "auto";
    case Mpi:
      return "mpi";
    case Nccl:
      return "nccl";
  }
  return "";
}

std::string_view word_of(CommConfig::Progress value) {
  switch (value) {
    using enum CommConfig::Progress;
    case Auto:
      return "auto";
    case Thread:
      return "thread";
    case None:
      return "none";
  }
  return "";
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
