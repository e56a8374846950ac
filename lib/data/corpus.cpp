#include "data/corpus.h"

#include <fmt/format.h>

#include "base/error.h"
#include "data/kinds.h"

namespace meshard {

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
