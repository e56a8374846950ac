#include "data/corpus.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "data/kinds.h"

namespace meshard {

std::uint64_t fingerprint(std::span<const unsigned char> content) {
  constexpr std::size_t kBlock = 64 << 10, kBlocks = 8;
  auto hash = mix64(content.size());
  auto add = [&](std::span<const unsigned char> block) {
    hash = mix64(hash ^ hash_text({reinterpret_cast<const char*>(block.data()), block.size()}));
  };
  if (content.size() <= kBlocks * kBlock) {
    add(content);
  } else {
    auto last = content.size() - kBlock;
    for (std::size_t i = 0; i < kBlocks; ++i) add(content.subspan(last * i / (kBlocks - 1), kBlock));
  }
  return hash;
}

std::unique_ptr<Corpus> open_corpus(const CorpusOptions& options) {
  if (options.seq_len < 1) throw ArgumentError(fmt::format("seq_len is {}; it must be at least 1", options.seq_len));
  if (options.vocab_size < 1) {
    throw ArgumentError(fmt::format("vocab_size is {}; it must be at least 1", options.vocab_size));
  }
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1)) {
    throw ArgumentError(fmt::format("validation_fraction is {}; it must be in [0, 1)", options.validation_fraction));
  }
  switch (options.type) {
    case CorpusOptions::Type::Text:
      return open_text(options);
    case CorpusOptions::Type::Indexed:
      return open_indexed(options);
    case CorpusOptions::Type::Synthetic:
      return open_synthetic(options);
  }
  throw ArgumentError("unknown corpus type");
}

}  // namespace meshard
