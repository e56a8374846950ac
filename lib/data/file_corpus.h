#pragma once
// What corpora of files have in common: cutting each file into training samples and held-out windows, and finding
// sample `index` again. Private to this room.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "data/corpus.h"

namespace meshard {

/// Windows of seq_len + 1 tokens, numbered across files.
class Windows {
 public:
  explicit Windows(std::int64_t seq_len) : seq_len_(seq_len) {}

  /// Local. Cuts tokens [begin, end) of the next file; returns how many windows they gave (0 is legal).
  std::int64_t add(std::int64_t begin, std::int64_t end);

  std::int64_t count() const { return counts_.empty() ? 0 : counts_.back(); }

  struct Place {
    std::size_t file = 0;
    std::int64_t token = 0;  ///< of the file: where the window begins
  };
  /// Local. Throws ArgumentError outside [0, count()).
  Place find(std::int64_t index) const;

 private:
  std::int64_t seq_len_;
  std::vector<std::int64_t> begins_;  // per file: its first token
  std::vector<std::int64_t> counts_;  // per file: windows up to and including it
};

class FileCorpus : public Corpus {
 public:
  explicit FileCorpus(const CorpusOptions& options);

  std::int64_t train_samples() const override { return train_.count(); }
  std::int64_t eval_samples() const override { return eval_.count(); }
  void train_sample(std::int64_t index, std::span<std::int64_t> tokens) const override;
  void eval_sample(std::int64_t index, std::span<std::int64_t> tokens) const override;
  std::vector<DataFile> files() const override;
  std::string describe() const override;

 protected:
  /// Local. Cuts the next file. Throws ConfigError, naming it, if it is too short for one training sample.
  void add_file(const std::filesystem::path& path, std::int64_t tokens);

  /// Local. Reads tokens.size() tokens of a file from token `first` on.
  virtual void read(std::size_t file, std::int64_t first, std::span<std::int64_t> tokens) const = 0;
  /// Local. All of a file, as fingerprint() wants it.
  virtual std::span<const unsigned char> content(std::size_t file) const = 0;
  /// Local. What a start-up table calls it: "text (bytes)".
  virtual std::string kind() const = 0;

 private:
  void read_window(const Windows& windows, std::int64_t index, std::span<std::int64_t> tokens) const;

  std::int64_t seq_len_;
  double validation_fraction_;
  std::vector<std::string> names_;    // per file: its name, without its folder
  std::vector<std::int64_t> tokens_;  // per file
  Windows train_;
  Windows eval_;
};

}  // namespace meshard
