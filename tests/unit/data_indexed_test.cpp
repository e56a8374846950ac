#include <boost/test/unit_test.hpp>
#include <cstring>

#include "support/corpus_fixture.h"

using namespace meshard;

namespace {
template <typename T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// What Megatron's IndexedDatasetBuilder writes for sequences of int32 tokens; the tests damage copies of it.
struct Dataset {
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> documents{0};
  std::uint64_t version = 1;
  std::uint8_t dtype = 4;
  std::string tokens;

  template <typename T = std::int32_t>
  void add_document(const Tokens& document) {
    lengths.push_back(static_cast<std::int32_t>(document.size()));
    offsets.push_back(static_cast<std::int64_t>(tokens.size()));
    for (auto token : document) put(tokens, static_cast<T>(token));
    documents.push_back(static_cast<std::int64_t>(lengths.size()));
  }

  std::string index() const {
    std::string bytes("MMIDIDX\0\0", 9);
    put(bytes, version);
    put(bytes, dtype);
    put(bytes, static_cast<std::uint64_t>(lengths.size()));
    put(bytes, static_cast<std::uint64_t>(documents.size()));
    for (auto length : lengths) put(bytes, length);
    for (auto offset : offsets) put(bytes, offset);
    for (auto document : documents) put(bytes, document);
    return bytes;
  }
};

Dataset three_documents() {
  Dataset dataset;
  dataset.add_document({1, 2, 3, 0});
  dataset.add_document({4, 0});
  dataset.add_document({5, 6, 7, 8, 0});
  return dataset;
}

struct IndexedFolder : Folder {
  CorpusOptions options(std::int64_t seq_len = 2, double validation_fraction = 0.0) const {
    return {CorpusOptions::Type::Indexed, {(path / "data").string()}, validation_fraction, seq_len, 100, 0};
  }
  CorpusOptions options_of(const Dataset& dataset) const { return options_of(dataset.index(), dataset.tokens); }
  CorpusOptions options_of(const std::string& index, const std::string& tokens) const {
    write("data.idx", index);
    write("data.bin", tokens);
    return options();
  }
};
}  // namespace

// Catches: samples cut per document, or an end of document made up: Megatron's stream runs across documents.
BOOST_FIXTURE_TEST_CASE(documents_are_one_stream, IndexedFolder) {
  auto corpus = open_corpus(options_of(three_documents()));

  BOOST_TEST(corpus->train_samples() == 5);
  BOOST_TEST(train(*corpus, 0, 2) == (Tokens{1, 2, 3}));
  BOOST_TEST(train(*corpus, 1, 2) == (Tokens{3, 0, 4}));
  BOOST_TEST(train(*corpus, 2, 2) == (Tokens{4, 0, 5}));
  BOOST_TEST(train(*corpus, 4, 2) == (Tokens{7, 8, 0}));
  BOOST_TEST(!corpus->is_bytes());
  BOOST_TEST(says(corpus->describe(), {"3 documents", "11 tokens", "5 training"}));
  auto file = corpus->files().at(0);
  BOOST_TEST(file.name == "data.bin");
  BOOST_TEST(file.bytes == 44);
  BOOST_TEST(file.tokens == 11);
}

// Catches: a held-out part that is not the tail, or is also trained on.
BOOST_FIXTURE_TEST_CASE(the_tail_is_held_out, IndexedFolder) {
  options_of(three_documents());
  auto corpus = open_corpus(options(2, 0.45));  // 5 of 11 tokens

  BOOST_TEST(corpus->train_samples() == 2);
  BOOST_TEST(corpus->eval_samples() == 2);
  BOOST_TEST(train(*corpus, 1, 2) == (Tokens{3, 0, 4}));
  BOOST_TEST(eval(*corpus, 0, 2) == (Tokens{5, 6, 7}));
  BOOST_TEST(eval(*corpus, 1, 2) == (Tokens{7, 8, 0}));
}

// Catches: a dtype code read as another width or sign.
BOOST_FIXTURE_TEST_CASE(every_integer_dtype_is_read, IndexedFolder) {
  auto reads = [&]<typename T>(std::uint8_t code, std::int64_t highest, T) {
    Dataset dataset;
    dataset.dtype = code;
    dataset.add_document<T>({1, highest, 2});
    auto options = options_of(dataset);
    options.vocab_size = highest + 1;
    return train(*open_corpus(options), 0, 2) == Tokens{1, highest, 2};
  };
  BOOST_TEST(reads(1, 255, std::uint8_t{}));
  BOOST_TEST(reads(2, 127, std::int8_t{}));
  BOOST_TEST(reads(3, 32767, std::int16_t{}));
  BOOST_TEST(reads(4, 2147483647, std::int32_t{}));
  BOOST_TEST(reads(5, std::int64_t{1} << 40, std::int64_t{}));
  BOOST_TEST(reads(8, 65535, std::uint16_t{}));
}

// Catches: a user's spelling of the path that only some forms accept.
BOOST_FIXTURE_TEST_CASE(prefix_bin_and_idx_name_the_same_data, IndexedFolder) {
  auto options = options_of(three_documents());
  for (const char* name : {"data", "data.bin", "data.idx", "da*", "*.bin"}) {
    options.files = {(path / name).string(), (path / "data").string()};
    BOOST_TEST(open_corpus(options)->train_samples() == 5);
  }
}

// Catches: an index that is damaged, of another kind or for other data, and is trained on all the same.
BOOST_FIXTURE_TEST_CASE(damaged_indices_are_refused, IndexedFolder) {
  auto good = three_documents();
  auto index = good.index();
  auto damaged = [&](std::size_t at, char value) {
    auto copy = index;
    copy[at] = value;
    return refusal(options_of(copy, good.tokens));
  };
  auto changed = [&](auto change) {
    auto copy = good;
    change(copy);
    return refusal(options_of(copy));
  };

  BOOST_TEST(refusal(options_of(good)) == "accepted");
  BOOST_TEST(says(damaged(0, 'X'), {"data.idx, byte 0", "MMIDIDX"}));
  BOOST_TEST(says(changed([](Dataset& d) { d.version = 2; }), {"data.idx, byte 9", "version 2"}));
  BOOST_TEST(says(damaged(17, 6), {"data.idx, byte 17", "floating point"}));
  BOOST_TEST(says(damaged(17, 7), {"data.idx, byte 17", "floating point"}));
  BOOST_TEST(says(damaged(17, 9), {"data.idx, byte 17", "unknown dtype code 9"}));
  BOOST_TEST(says(damaged(25, 0x7f), {"data.idx", "not the size of an index"}));
  BOOST_TEST(says(damaged(33, 0x7f), {"data.idx", "not the size of an index"}));
  BOOST_TEST(says(changed([](Dataset& d) { d.lengths[1] = -2; }), {"data.idx, byte 38", "sequence 1 has -2 tokens"}));
  BOOST_TEST(
      says(changed([](Dataset& d) { d.offsets[2] = 12; }), {"data.idx, byte 62", "sequence 2 begins at byte 12"}));
  BOOST_TEST(says(changed([](Dataset& d) { d.documents[0] = 1; }), {"data.idx, byte 70", "document boundary 0"}));
  BOOST_TEST(says(changed([](Dataset& d) { d.documents[2] = 0; }), {"data.idx, byte 86", "document boundary 2"}));
  BOOST_TEST(says(changed([](Dataset& d) { d.documents[3] = 2; }), {"data.idx, byte 94", "end at sequence 2 of 3"}));
}

// Catches: reading past the end of a truncated file.
BOOST_FIXTURE_TEST_CASE(every_truncation_is_refused, IndexedFolder) {
  auto good = three_documents();
  auto index = good.index();
  for (std::size_t size = 0; size < index.size(); ++size) {
    BOOST_TEST(says(refusal(options_of(index.substr(0, size), good.tokens)), {"data.idx, byte"}));
  }
  BOOST_TEST(says(refusal(options_of(index + "more", good.tokens)), {"data.idx", "106 bytes"}));
  BOOST_TEST(
      says(refusal(options_of(index, good.tokens.substr(4))), {"data.bin has 40 bytes", "11 tokens of 4 bytes"}));
  BOOST_TEST(says(refusal(options_of(index, good.tokens + "more")), {"data.bin has 48 bytes"}));
  BOOST_TEST(says(refusal(options_of(index, "")), {"data.bin has 0 bytes"}));
}

// Catches: missing halves of a pair, and data too small to train on.
BOOST_FIXTURE_TEST_CASE(unusable_files_are_named, IndexedFolder) {
  BOOST_TEST(says(refusal(options()), {"data.idx", "No such file"}));
  options_of(three_documents());
  BOOST_TEST(says(refusal(options(11)), {"data.bin", "too short", "seq_len + 1 = 12"}));
  std::filesystem::remove(path / "data.bin");
  BOOST_TEST(says(refusal(options()), {"data.bin", "No such file"}));
  BOOST_TEST(says(refusal(options_of(Dataset{})), {"data.bin", "too short"}));
}

// Catches: an embedding lookup out of bounds. Before training where it is cheap, else when the sample is read.
BOOST_FIXTURE_TEST_CASE(ids_outside_the_vocabulary_are_named, IndexedFolder) {
  auto dataset = three_documents();
  dataset.add_document({9, 100, 0});
  BOOST_TEST(says(refusal(options_of(dataset)), {"data.bin, byte 48", "token 12 has id 100", "vocab_size 100"}));

  dataset = three_documents();
  dataset.add_document({-1});
  BOOST_TEST(says(refusal(options_of(dataset)), {"data.bin, byte 44", "token 11 has id -1"}));

  Dataset large;
  Tokens many(std::size_t{5} << 20, 7);
  many[(std::size_t{4} << 20) + 3] = 101;
  large.add_document(many);
  auto corpus = open_corpus(options_of(large));
  auto sample = std::int64_t{2} << 20;
  BOOST_TEST(train(*corpus, sample, 2) == (Tokens{7, 7, 7}));
  try {
    train(*corpus, sample + 1, 2);
    BOOST_ERROR("accepted");
  } catch (const IoError& error) {
    BOOST_TEST(says(error.what(), {"data.bin, byte 16777228", "token 4194307 has id 101"}));
  }
}
