// Synthetic: a noisy second-order chain. Every token is a pure function of (seed, sample, position).

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "data/kinds.h"

namespace meshard {

namespace {
constexpr std::int64_t kSymbols = 32;
constexpr std::int64_t kTrainSamples = std::int64_t{1} << 40;
constexpr std::int64_t kEvalSamples = std::int64_t{1} << 20;

// Streams of draws that must not meet.
enum Stream : std::uint64_t { kChain, kTrain, kEval };

class SyntheticCorpus : public Corpus {
 public:
  explicit SyntheticCorpus(const CorpusOptions& options)
      : options_(options), symbols_(std::min(kSymbols, options.vocab_size)) {
    auto key = key_of(kChain, 0);
    for (std::int64_t pair = 0; pair < symbols_ * symbols_; ++pair) successor_.push_back(symbol(mix64(key + pair)));
  }

  std::int64_t train_samples() const override { return kTrainSamples; }
  std::int64_t eval_samples() const override { return kEvalSamples; }

  void train_sample(std::int64_t index, std::span<std::int64_t> tokens) const override {
    fill(kTrain, index, kTrainSamples, tokens);
  }
  void eval_sample(std::int64_t index, std::span<std::int64_t> tokens) const override {
    fill(kEval, index, kEvalSamples, tokens);
  }

  std::vector<DataFile> files() const override { return {}; }
  bool is_bytes() const override { return false; }

  std::string describe() const override {
    return fmt::format("synthetic: second-order chain over {} symbols, seed {}, samples of {}", symbols_, options_.seed,
                       options_.seq_len);
  }

 private:
  std::uint64_t key_of(Stream stream, std::int64_t index) const {
    return mix64(mix64(mix64(options_.seed) + stream) + static_cast<std::uint64_t>(index));
  }

  std::int64_t symbol(std::uint64_t draw) const {
    return static_cast<std::int64_t>(draw % static_cast<std::uint64_t>(symbols_));
  }

  void fill(Stream stream, std::int64_t index, std::int64_t samples, std::span<std::int64_t> tokens) const {
    if (index < 0 || index >= samples) throw ArgumentError(fmt::format("sample {} of {}", index, samples));
    if (static_cast<std::int64_t>(tokens.size()) != options_.seq_len + 1) {
      throw ArgumentError(fmt::format("a sample has {} tokens, the span has {}", options_.seq_len + 1, tokens.size()));
    }
    auto draw = key_of(stream, index);
    std::int64_t before = symbol(mix64(draw++));
    std::int64_t last = symbol(mix64(draw++));
    for (auto& token : tokens) {
      auto bits = mix64(draw++);
      auto next = bits % 8 == 0 ? symbol(bits >> 3) : successor_[before * symbols_ + last];
      token = next * options_.vocab_size / symbols_;
      before = std::exchange(last, next);
    }
  }

  CorpusOptions options_;
  std::int64_t symbols_;
  std::vector<std::int64_t> successor_;  // of a pair of symbols
};
}  // namespace

std::unique_ptr<Corpus> open_synthetic(const CorpusOptions& options) {
  return std::make_unique<SyntheticCorpus>(options);
}

}  // namespace meshard
