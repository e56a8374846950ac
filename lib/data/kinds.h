#pragma once
// The kinds of corpora behind open_corpus(), which has checked the options. Private to this room.

#include "data/corpus.h"

namespace meshard {

std::unique_ptr<Corpus> open_text(const CorpusOptions& options);
std::unique_ptr<Corpus> open_indexed(const CorpusOptions& options);
std::unique_ptr<Corpus> open_synthetic(const CorpusOptions& options);

}  // namespace meshard
