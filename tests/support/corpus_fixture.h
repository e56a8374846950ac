#pragma once
// What the tests of corpora share: a folder of their own to write files in, samples as vectors, and refusals as text.

#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/corpus.h"

namespace meshard {

using Tokens = std::vector<std::int64_t>;

struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("meshard-corpus-" + std::to_string(getpid()));
  Folder() { std::filesystem::create_directory(path); }
  ~Folder() { std::filesystem::remove_all(path); }

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path / name, std::ios::binary) << content;
    return (path / name).string();
  }
};

inline Tokens train(const Corpus& corpus, std::int64_t index, std::int64_t seq_len) {
  Tokens tokens(static_cast<std::size_t>(seq_len + 1));
  corpus.train_sample(index, tokens);
  return tokens;
}

inline Tokens eval(const Corpus& corpus, std::int64_t index, std::int64_t seq_len) {
  Tokens tokens(static_cast<std::size_t>(seq_len + 1));
  corpus.eval_sample(index, tokens);
  return tokens;
}

/// The message that opening a corpus is refused with, or "accepted".
inline std::string refusal(const CorpusOptions& options) {
  try {
    open_corpus(options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

/// Whether `message` has every part; says which one it lacks.
inline bool says(const std::string& message, std::initializer_list<std::string> parts) {
  return std::ranges::all_of(parts, [&](const std::string& part) {
    bool found = message.find(part) != std::string::npos;
    if (!found) BOOST_TEST_MESSAGE("missing `" << part << "` in: " << message);
    return found;
  });
}

}  // namespace meshard
