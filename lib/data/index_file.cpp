#include "data/index_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "data/files.h"

namespace meshard {

namespace {
constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::int64_t kDtypeAt = 17;
constexpr std::int64_t kHeaderSize = 34;

/// An index being read; every complaint names the file and the offset.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path), file_(path) {}

  std::int64_t size() const { return static_cast<std::int64_t>(file_.bytes().size()); }

  template <typename T>
  T at(std::int64_t offset) const {
    T value;
    std::memcpy(&value, file_.bytes().data() + offset, sizeof value);
    return value;
  }

  bool begins_with(std::string_view text) const {
    return file_.bytes().size() >= text.size() && std::memcmp(file_.bytes().data(), text.data(), text.size()) == 0;
  }

  [[noreturn]] void fail(std::int64_t offset, const std::string& what) const {
    throw ConfigError(fmt::format("data.files: {}, byte {}: {}", path_.string(), offset, what));
  }

 private:
  std::filesystem::path path_;
  MappedFile file_;
};

TokenType token_type(const Reader& index) {
  auto code = index.at<std::uint8_t>(kDtypeAt);
  if (code == 6 || code == 7) index.fail(kDtypeAt, fmt::format("dtype code {} is floating point, not token ids", code));
  if (code < 1 || code > 8) index.fail(kDtypeAt, fmt::format("unknown dtype code {}; known are 1 to 5 and 8", code));
  return static_cast<TokenType>(code);
}

/// Sums the sequences and checks that they lie one after another.
std::int64_t count_tokens(const Reader& index, std::int64_t sequences, std::int64_t token_bytes) {
  std::int64_t lengths_at = kHeaderSize;
  std::int64_t offsets_at = lengths_at + 4 * sequences;
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < sequences; ++i) {
    auto length = index.at<std::int32_t>(lengths_at + 4 * i);
    auto offset = index.at<std::int64_t>(offsets_at + 8 * i);
    if (length < 0) index.fail(lengths_at + 4 * i, fmt::format("sequence {} has {} tokens", i, length));
    if (offset != tokens * token_bytes) {
      index.fail(offsets_at + 8 * i,
                 fmt::format("sequence {} begins at byte {} of the .bin, but the one before it ends "
                             "at {}; write the data again with Megatron's preprocess_data",
                             i, offset, tokens * token_bytes));
    }
    tokens += length;
  }
  return tokens;
}

void check_documents(const Reader& index, std::int64_t sequences, std::int64_t boundaries) {
  std::int64_t at = kHeaderSize + 12 * sequences;
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < boundaries; ++i, at += 8) {
    auto boundary = index.at<std::int64_t>(at);
    bool in_order = i == 0 ? boundary == 0 : boundary >= last && boundary <= sequences;
    if (!in_order) index.fail(at, fmt::format("document boundary {} is sequence {} of {}", i, boundary, sequences));
    last = boundary;
  }
  if (last != sequences) index.fail(at - 8, fmt::format("the documents end at sequence {} of {}", last, sequences));
}
}  // namespace

std::int64_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::U8:
    case TokenType::I8:
      return 1;
    case TokenType::I16:
    case TokenType::U16:
      return 2;
    case TokenType::I32:
      return 4;
    case TokenType::I64:
      return 8;
  }
  throw ArgumentError("unknown token type");
}

IndexFile read_index(const std::filesystem::path& path) {
  Reader index(path);
  if (!index.begins_with(kMagic)) {
    index.fail(0,
               "does not begin with MMIDIDX, so it is no Megatron index (or is empty); write it with preprocess_data");
  }
  if (index.size() < kHeaderSize) {
    index.fail(index.size(), fmt::format("truncated: the header alone has {} bytes", kHeaderSize));
  }
  if (auto version = index.at<std::uint64_t>(9); version != 1) {
    index.fail(9, fmt::format("version {}; only version 1 is known", version));
  }
  auto type = token_type(index);
  auto sequences = index.at<std::uint64_t>(18);
  auto boundaries = index.at<std::uint64_t>(26);
  auto size = static_cast<std::uint64_t>(index.size());
  // Divided first: a damaged count must not overflow the product.
  bool fits = sequences <= size / 12 && boundaries <= size / 8;
  if (!fits || kHeaderSize + 12 * sequences + 8 * boundaries != size) {
    index.fail(index.size(),
               fmt::format("the file has {} bytes, which is not the size of an index of {} sequences and {} "
                           "document boundaries; it is truncated, damaged or multimodal",
                           size, sequences, boundaries));
  }
  auto count = static_cast<std::int64_t>(sequences);
  auto tokens = count_tokens(index, count, bytes_of(type));
  check_documents(index, count, static_cast<std::int64_t>(boundaries));
  return {type, tokens, std::max<std::int64_t>(static_cast<std::int64_t>(boundaries) - 1, 0)};
}

}  // namespace meshard
