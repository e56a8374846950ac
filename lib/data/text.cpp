// Text: the bytes tokenizer over plain and gzip files.

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "data/file_corpus.h"
#include "data/files.h"
#include "data/kinds.h"

namespace meshard {

namespace {
constexpr std::int64_t kEndOfDocument = 256;

/// The bytes of one file: mapped if it is plain, in memory if they had to be inflated.
class TextFile {
 public:
  explicit TextFile(const std::filesystem::path& path);
  std::span<const unsigned char> bytes() const { return compressed_ ? inflated_ : mapped_.bytes(); }

 private:
  MappedFile mapped_;
  std::vector<unsigned char> inflated_;
  bool compressed_;
};

std::vector<unsigned char> inflate_file(const std::filesystem::path& path) {
  std::vector<unsigned char> text;
  auto fail = [&](const char* reason) {
    throw ConfigError(fmt::format("data.files: {} is a broken gzip file ({}, after {} bytes of text); fetch it again",
                                  path.string(), reason, text.size()));
  };
  gzFile file = gzopen(path.c_str(), "rb");
  if (!file) throw ConfigError(fmt::format("data.files: cannot open {}", path.string()));
  std::unique_ptr<gzFile_s, int (*)(gzFile)> closing(file, gzclose_r);
  std::array<unsigned char, 1 << 16> block;
  int got = 0;
  while ((got = gzread(file, block.data(), block.size())) > 0)
    text.insert(text.end(), block.data(), block.data() + got);
  int status = Z_OK;
  const char* reason = gzerror(file, &status);
  if (status != Z_OK && status != Z_STREAM_END) fail(reason);
  // A stream cut short shows only here.
  if (gzclose_r(closing.release()) != Z_OK) fail("it ends too early");
  return text;
}

TextFile::TextFile(const std::filesystem::path& path) : mapped_(path) {
  auto content = mapped_.bytes();
  compressed_ = content.size() >= 2 && content[0] == 0x1f && content[1] == 0x8b;
  if (!compressed_ && !content.empty() && path.extension() == ".gz") {
    throw ConfigError(
        fmt::format("data.files: {} is not a gzip file (it does not begin with 1f 8b); rename it if it is "
                    "plain text, else fetch it again",
                    path.string()));
  }
  if (compressed_) inflated_ = inflate_file(path);
  if (bytes().empty()) throw ConfigError(fmt::format("data.files: {} is empty; leave it out", path.string()));
}

class TextCorpus : public FileCorpus {
 public:
  explicit TextCorpus(const CorpusOptions& options) : FileCorpus(options) {
    for_each_file(options, [this](const std::filesystem::path& path) {
      files_.emplace_back(path);
      add_file(path, static_cast<std::int64_t>(files_.back().bytes().size()) + 1);
    });
  }

  bool is_bytes() const override { return true; }

 protected:
  void read(std::size_t file, std::int64_t first, std::span<std::int64_t> tokens) const override {
    auto bytes = files_[file].bytes().subspan(static_cast<std::size_t>(first));
    auto count = std::min(bytes.size(), tokens.size());
    std::copy_n(bytes.begin(), count, tokens.begin());
    if (count < tokens.size()) tokens[count] = kEndOfDocument;
  }

  std::span<const unsigned char> content(std::size_t file) const override { return files_[file].bytes(); }
  std::string kind() const override { return "text (bytes)"; }

 private:
  std::vector<TextFile> files_;
};
}  // namespace

std::unique_ptr<Corpus> open_text(const CorpusOptions& options) {
  if (options.vocab_size <= kEndOfDocument) {
    throw ConfigError(
        fmt::format("model.vocab_size: {} is too small for data.tokenizer bytes, which has 257 tokens (256 "
                    "bytes and the end of a document); use at least 257",
                    options.vocab_size));
  }
  return std::make_unique<TextCorpus>(options);
}

}  // namespace meshard
