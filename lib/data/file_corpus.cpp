#include "data/file_corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace meshard {

std::int64_t Windows::add(std::int64_t begin, std::int64_t end) {
  std::int64_t added = end > begin ? (end - begin - 1) / seq_len_ : 0;
  counts_.push_back(count() + added);
  begins_.push_back(begin);
  return added;
}

Windows::Place Windows::find(std::int64_t index) const {
  if (index < 0 || index >= count()) {
    throw ArgumentError(fmt::format("sample {} of a corpus part that has {}", index, count()));
  }
  auto file = static_cast<std::size_t>(std::ranges::upper_bound(counts_, index) - counts_.begin());
  std::int64_t within = file == 0 ? index : index - counts_[file - 1];
  return {file, begins_[file] + within * seq_len_};
}

FileCorpus::FileCorpus(const CorpusOptions& options)
    : seq_len_(options.seq_len),
      validation_fraction_(options.validation_fraction),
      train_(options.seq_len),
      eval_(options.seq_len) {}

void FileCorpus::add_file(const std::filesystem::path& path, std::int64_t tokens) {
  std::int64_t held_out = std::llround(static_cast<double>(tokens) * validation_fraction_);
  if (train_.add(0, tokens - held_out) == 0) {
    throw ConfigError(
        fmt::format("data.files: {} is too short: {} tokens, {} of them for training, but a sample needs seq_len + 1 = "
                    "{}; join it with another file, leave it out, or lower train.seq_len",
                    path.string(), tokens, tokens - held_out, seq_len_ + 1));
  }
  eval_.add(tokens - held_out, tokens);
  names_.push_back(path.filename().string());
  tokens_.push_back(tokens);
}

std::vector<DataFile> FileCorpus::files() const {
  std::vector<DataFile> files;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    auto bytes = content(i);
    files.push_back({names_[i], std::ssize(bytes), tokens_[i], fingerprint(bytes)});
  }
  return files;
}

void FileCorpus::train_sample(std::int64_t index, std::span<std::int64_t> tokens) const {
  read_window(train_, index, tokens);
}

void FileCorpus::eval_sample(std::int64_t index, std::span<std::int64_t> tokens) const {
  read_window(eval_, index, tokens);
}

void FileCorpus::read_window(const Windows& windows, std::int64_t index, std::span<std::int64_t> tokens) const {
  if (static_cast<std::int64_t>(tokens.size()) != seq_len_ + 1) {
    throw ArgumentError(
        fmt::format("a sample has seq_len + 1 = {} tokens, the span has {}", seq_len_ + 1, tokens.size()));
  }
  auto place = windows.find(index);
  read(place.file, place.token, tokens);
}

std::string FileCorpus::describe() const {
  auto tokens = std::accumulate(tokens_.begin(), tokens_.end(), std::int64_t{0});
  return fmt::format("{}: {} file{}, {} tokens, {} training and {} held-out samples of {}", kind(), names_.size(),
                     names_.size() == 1 ? "" : "s", tokens, train_.count(), eval_.count(), seq_len_);
}

}  // namespace meshard
