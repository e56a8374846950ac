#pragma once
// Corpora: where token ids come from. A corpus is a numbered list of training samples and a list of held-out windows,
// each of seq_len + 1 token ids (inputs are the first seq_len, targets the last seq_len). It has no state and knows no
// ranks: the order of training samples is the Sampler's, and the same index gives the same tokens anywhere, any time.
//
// Cutting is the same for every corpus of files. The held-out part of a file is its last round(validation_fraction *
// tokens) tokens, the rest is its training part. Sample j of a part of n tokens is its tokens
// [j * seq_len, j * seq_len + seq_len]: neighbours share one token, each token is a target at most once per epoch, and
// (n - 1) / seq_len samples fit. No sample crosses from one part or file into another. Samples are numbered file by
// file.
//
// * text: a token is a byte; token 256 ends each file (so it lies in the file's held-out part, if there is one). gzip
//   files are recognised by their content and read as the text they hold.
// * indexed: Megatron's .bin/.idx. The tokens of a file are those of all its documents in the order of the index, as
//   one stream: samples run across documents, as they do for Megatron's GPTDataset, and no end-of-document token is
//   added (preprocess_data --append-eod did that). Two differences from Megatron: documents are not shuffled before the
//   stream is cut (samples are, after), and the held-out part is a share of the tokens, not of the documents.
// * synthetic: no files. A noisy second-order chain over 32 symbols spread over the vocabulary: with probability 7/8
//   the next symbol is a function of the two before it, else it is uniform. A model that has learnt it has a loss of
//   0.785 (vocabularies of at least 32). Practically unlimited; held-out windows are never training samples.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace meshard {

struct CorpusOptions {
  enum class Type { Text, Indexed, Synthetic } type = Type::Text;
  /// Paths or globs; indexed: path prefixes, .bin or .idx files. Patterns keep their order, the matches of one are
  /// sorted bytewise, and a file matched twice counts once.
  std::vector<std::string> files;
  double validation_fraction = 0.05;  ///< [0, 1)
  std::int64_t seq_len = 0;
  std::int64_t vocab_size = 0;
  std::uint64_t seed = 0;  ///< synthetic only: the chain and its draws
  /// What a message about the files of each pattern begins with: where it was written. May have fewer entries.
  std::vector<std::string> before_messages = {};
};

/// A file of a corpus, as far as a later start needs it to tell whether it is the same.
struct DataFile {
  std::string name;        ///< without its folder: data may move
  std::int64_t bytes = 0;  ///< of its content: the text that a .gz holds, the .bin of an indexed pair
  std::int64_t tokens = 0;
  std::uint64_t fingerprint = 0;  ///< of the content
};

/// Local. A stable hash of the size and, of content beyond 512 KiB, of eight blocks of 64 KiB: the first, the last, and
/// six evenly between them; of less, of all of it. So it is cheap for files of any size, and blind to a change that
/// keeps the size and lies between those blocks.
std::uint64_t fingerprint(std::span<const unsigned char> content);

class Corpus {
 public:
  virtual ~Corpus() = default;

  /// Local. At least 1.
  virtual std::int64_t train_samples() const = 0;
  /// Local. May be 0: no held-out part, or none as long as a sample.
  virtual std::int64_t eval_samples() const = 0;

  /// Local. Fills `tokens`, which must have seq_len + 1 elements, with ids in [0, vocab_size). Thread-safe.
  /// Throws ArgumentError for an index outside [0, train_samples()) or a span of another size, and IoError, naming file
  /// and offset, for an id outside the vocabulary.
  virtual void train_sample(std::int64_t index, std::span<std::int64_t> tokens) const = 0;
  /// Local. The same for held-out window `index`, in [0, eval_samples()).
  virtual void eval_sample(std::int64_t index, std::span<std::int64_t> tokens) const = 0;

  /// Local. The files, in the order of their samples; none for synthetic data. Reads what fingerprint() says of each.
  virtual std::vector<DataFile> files() const = 0;

  /// Local. Whether a token is a byte, so that loss / ln 2 is bits per byte.
  virtual bool is_bytes() const = 0;

  /// Local. One line for the start-up table.
  virtual std::string describe() const = 0;
};

/// Local. Opens and checks every file.
///
/// Throws ConfigError, naming file and offset and what to do, for: a pattern that matches nothing; a folder; a file
/// that is unreadable, empty, or too short for one training sample; a broken gzip stream; a vocabulary without room for
/// 257 tokens (text); an index that is truncated, has another magic or version, a float dtype, or does not describe its
/// .bin exactly; an id outside the vocabulary among the first 4 Mi tokens of a .bin (later ones are found when read).
/// Throws ArgumentError for a seq_len, vocab_size or validation_fraction out of range.
std::unique_ptr<Corpus> open_corpus(const CorpusOptions& options);

}  // namespace meshard
