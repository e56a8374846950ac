// Indexed: Megatron's .bin, a stream of token ids described by its .idx.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "data/file_corpus.h"
#include "data/files.h"
#include "data/index_file.h"
#include "data/kinds.h"

namespace meshard {

namespace {
constexpr std::int64_t kCheckedTokens = std::int64_t{4} << 20;
constexpr std::int64_t kBlock = std::int64_t{1} << 16;

struct TokenFile {
  std::filesystem::path path;
  MappedFile data;
  TokenType type;
  std::int64_t tokens;
  std::int64_t documents;
};

template <typename T>
void widen(const unsigned char* from, std::span<std::int64_t> tokens) {
  for (auto& token : tokens) {
    T value;
    std::memcpy(&value, from, sizeof value);
    token = value;
    from += sizeof value;
  }
}

void load(const TokenFile& file, std::int64_t first, std::span<std::int64_t> tokens) {
  auto* from = file.data.bytes().data() + first * bytes_of(file.type);
  switch (file.type) {
    case TokenType::U8:
      return widen<std::uint8_t>(from, tokens);
    case TokenType::I8:
      return widen<std::int8_t>(from, tokens);
    case TokenType::I16:
      return widen<std::int16_t>(from, tokens);
    case TokenType::U16:
      return widen<std::uint16_t>(from, tokens);
    case TokenType::I32:
      return widen<std::int32_t>(from, tokens);
    case TokenType::I64:
      return widen<std::int64_t>(from, tokens);
  }
  throw ArgumentError("unknown token type");
}

/// Throws Failure for the first of `tokens`, which begin at token `first` of the file, that is outside the vocabulary.
template <typename Failure>
void check(const TokenFile& file, std::int64_t first, std::span<const std::int64_t> tokens, std::int64_t vocab_size) {
  auto bad = std::ranges::find_if(tokens, [&](std::int64_t id) { return id < 0 || id >= vocab_size; });
  if (bad == tokens.end()) return;
  auto at = first + (bad - tokens.begin());
  throw Failure(
      fmt::format("data.files: {}, byte {}: token {} has id {}, outside model.vocab_size {}; use the vocabulary "
                  "that the data was written with",
                  file.path.string(), at * bytes_of(file.type), at, *bad, vocab_size));
}

/// With paths of .bin files, from prefixes (Megatron's --data-path), .bin or .idx files.
CorpusOptions of_bin_files(CorpusOptions options) {
  for (auto& pattern : options.files) {
    if (pattern.ends_with(".idx")) pattern.resize(pattern.size() - 4);
    if (!pattern.ends_with(".bin")) pattern += ".bin";
  }
  return options;
}

TokenFile open_tokens(const std::filesystem::path& path) {
  auto index_path = std::filesystem::path(path).replace_extension(".idx");
  auto index = read_index(index_path);
  TokenFile file{path, MappedFile(path), index.type, index.tokens, index.documents};
  auto size = static_cast<std::int64_t>(file.data.bytes().size());
  if (size != file.tokens * bytes_of(file.type)) {
    throw ConfigError(fmt::format(
        "data.files: {} has {} bytes, but {} describes {} tokens of {} bytes = {}; one of them "
        "is truncated or belongs to other data",
        path.string(), size, index_path.string(), file.tokens, bytes_of(file.type), file.tokens * bytes_of(file.type)));
  }
  return file;
}

class IndexedCorpus : public FileCorpus {
 public:
  explicit IndexedCorpus(const CorpusOptions& options) : FileCorpus(options), vocab_size_(options.vocab_size) {
    for_each_file(of_bin_files(options), [this](const std::filesystem::path& path) {
      files_.push_back(open_tokens(path));
      add_file(path, files_.back().tokens);
      check_beginning(files_.back());
    });
  }

  bool is_bytes() const override { return false; }

 protected:
  void read(std::size_t file, std::int64_t first, std::span<std::int64_t> tokens) const override {
    load(files_[file], first, tokens);
    check<IoError>(files_[file], first, tokens, vocab_size_);
  }

  std::span<const unsigned char> content(std::size_t file) const override { return files_[file].data.bytes(); }

  std::string kind() const override {
    std::int64_t documents = 0;
    for (auto& file : files_) documents += file.documents;
    return fmt::format("indexed ({} documents)", documents);
  }

 private:
  void check_beginning(const TokenFile& file) const {
    std::vector<std::int64_t> block(kBlock);
    auto end = std::min(file.tokens, kCheckedTokens);
    for (std::int64_t first = 0; first < end; first += kBlock) {
      auto tokens = std::span(block).first(static_cast<std::size_t>(std::min(kBlock, end - first)));
      load(file, first, tokens);
      check<ConfigError>(file, first, tokens, vocab_size_);
    }
  }

  std::int64_t vocab_size_;
  std::vector<TokenFile> files_;
};
}  // namespace

std::unique_ptr<Corpus> open_indexed(const CorpusOptions& options) {
  return std::make_unique<IndexedCorpus>(options);
}

}  // namespace meshard
