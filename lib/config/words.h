#pragma once
// The words that a configuration is made of: how each enum is written, and which word was probably meant.

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "config/config.h"

namespace meshard {

/// The words of each enum, in the order of the reference.
template <class E>
using Words = std::vector<std::pair<std::string_view, E>>;
Words<Strategy> words_of(Strategy);
Words<Dtype> words_of(Dtype);
Words<MoeConfig::Scoring> words_of(MoeConfig::Scoring);
Words<AuxLossConfig::Type> words_of(AuxLossConfig::Type);
Words<InitConfig::Device> words_of(InitConfig::Device);
Words<TrainConfig::Checkpointing> words_of(TrainConfig::Checkpointing);
Words<OptimizerConfig::Type> words_of(OptimizerConfig::Type);
Words<LrScheduleConfig::Type> words_of(LrScheduleConfig::Type);
Words<DataConfig::Type> words_of(DataConfig::Type);
Words<DataConfig::OnChange> words_of(DataConfig::OnChange);
Words<CheckpointConfig::OnError> words_of(CheckpointConfig::OnError);
Words<HealthConfig::OnNonfinite> words_of(HealthConfig::OnNonfinite);
Words<CommConfig::Backend> words_of(CommConfig::Backend);

template <class E>
concept WordEnum = requires(E value) {
  words_of(value);
};

template <WordEnum E>
std::string_view word_of(E value) {
  for (const auto& [word, meaning] : words_of(value)) {
    if (meaning == value) return word;
  }
  return "?";
}

template <WordEnum E>
std::vector<std::string_view> all_words(E) {
  std::vector<std::string_view> all;
  for (const auto& [word, meaning] : words_of(E{})) all.push_back(word);
  return all;
}

/// Local. Levenshtein distance with a swap of neighbours as one edit (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);

/// Local. The word nearest to `text`, if it is near enough to be what was meant.
std::optional<std::string_view> nearest_word(std::string_view text, const std::vector<std::string_view>& words);

/// Local. Whether a distance is small enough, for a word of that length, to be a slip of the pen.
bool is_slip(int distance, std::size_t length);

}  // namespace meshard
