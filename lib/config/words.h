#pragma once
// The words that a configuration is made of: how each enum is written, and which word was probably meant.

#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/config.h"

namespace meshard {

/// Local. How a value is written; empty for what is no value of the enum.
std::string_view word_of(Strategy value);
std::string_view word_of(Dtype value);
std::string_view word_of(MoeConfig::Scoring value);
std::string_view word_of(AuxLossConfig::Type value);
std::string_view word_of(InitConfig::Device value);
std::string_view word_of(TrainConfig::Checkpointing value);
std::string_view word_of(OptimizerConfig::Type value);
std::string_view word_of(LrScheduleConfig::Type value);
std::string_view word_of(DataConfig::Type value);
std::string_view word_of(DataConfig::OnChange value);
std::string_view word_of(CheckpointConfig::OnError value);
std::string_view word_of(HealthConfig::OnNonfinite value);
std::string_view word_of(CommConfig::Backend value);
std::string_view word_of(CommConfig::Progress value);

template <class E>
concept WordEnum = std::is_enum_v<E> && requires(E value) {
  word_of(value);
};

/// Local. Every word with its value, in the order of the enum, which is that of the reference.
template <WordEnum E>
std::vector<std::pair<std::string_view, E>> words_of(E) {
  std::vector<std::pair<std::string_view, E>> all;
  for (int i = 0; !word_of(static_cast<E>(i)).empty(); ++i) {
    all.emplace_back(word_of(static_cast<E>(i)), static_cast<E>(i));
  }
  return all;
}

template <WordEnum E>
std::vector<std::string_view> all_words(E) {
  std::vector<std::string_view> all;
  for (auto& [word, meaning] : words_of(E{})) all.push_back(word);
  return all;
}

/// Local. Levenshtein distance with a swap of neighbours as one edit (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);

/// Local. The word nearest to `text`, if it is near enough to be what was meant.
std::optional<std::string_view> nearest_word(std::string_view text, const std::vector<std::string_view>& words);

/// Local. Whether a distance is small enough, for a word of that length, to be a slip of the pen.
bool is_slip(int distance, std::size_t length);

}  // namespace meshard
