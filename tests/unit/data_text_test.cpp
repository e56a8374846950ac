#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "support/corpus_fixture.h"

using namespace meshard;

namespace {
std::string write_gzip(const std::filesystem::path& path, const std::string& text, const char* mode = "wb") {
  gzFile file = gzopen(path.c_str(), mode);
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  return path.string();
}

CorpusOptions text_of(std::vector<std::string> files, std::int64_t seq_len, double validation_fraction = 0.0) {
  return {CorpusOptions::Type::Text, std::move(files), validation_fraction, seq_len, 264, 0};
}
}  // namespace

// Catches: an overlap that is off by one, a lost end of document, a sample that runs past the file.
BOOST_FIXTURE_TEST_CASE(samples_share_one_token_and_end_with_the_document, Folder) {
  auto corpus = open_corpus(text_of({write("a", "abcdefgh")}, 4));

  BOOST_TEST(corpus->train_samples() == 2);
  BOOST_TEST(corpus->eval_samples() == 0);
  BOOST_TEST(train(*corpus, 0, 4) == (Tokens{'a', 'b', 'c', 'd', 'e'}));
  BOOST_TEST(train(*corpus, 1, 4) == (Tokens{'e', 'f', 'g', 'h', 256}));
  BOOST_CHECK_THROW(train(*corpus, 2, 4), ArgumentError);
  BOOST_CHECK_THROW(train(*corpus, -1, 4), ArgumentError);
  BOOST_CHECK_THROW(train(*corpus, 0, 3), ArgumentError);
  BOOST_TEST(corpus->is_bytes());
}

// Catches: bytes above 127 read as negative tokens.
BOOST_FIXTURE_TEST_CASE(bytes_are_unsigned, Folder) {
  auto corpus = open_corpus(text_of({write("a", std::string("\xff\x80\x00\x7f", 4))}, 4));
  BOOST_TEST(train(*corpus, 0, 4) == (Tokens{255, 128, 0, 127, 256}));
}

// Catches: training on held-out text; a held-out part that is not the tail; windows that straddle files.
BOOST_FIXTURE_TEST_CASE(each_file_keeps_its_tail_for_evaluation, Folder) {
  // 20 tokens each with the end of document: 15 for training, 5 held out.
  auto first = write("a", "ABCDEFGHIJKLMNOPQRS");
  auto second = write("b", "abcdefghijklmnopqrs");

  auto corpus = open_corpus(text_of({first, second}, 2, 0.25));

  BOOST_TEST(corpus->train_samples() == 14);
  BOOST_TEST(corpus->eval_samples() == 4);
  BOOST_TEST(train(*corpus, 6, 2) == (Tokens{'M', 'N', 'O'}));
  BOOST_TEST(train(*corpus, 7, 2) == (Tokens{'a', 'b', 'c'}));
  BOOST_TEST(train(*corpus, 13, 2) == (Tokens{'m', 'n', 'o'}));
  BOOST_TEST(eval(*corpus, 0, 2) == (Tokens{'P', 'Q', 'R'}));
  BOOST_TEST(eval(*corpus, 1, 2) == (Tokens{'R', 'S', 256}));
  BOOST_TEST(eval(*corpus, 2, 2) == (Tokens{'p', 'q', 'r'}));
  BOOST_TEST(eval(*corpus, 3, 2) == (Tokens{'r', 's', 256}));
}

// Catches: an order that depends on the folder or the locale; a file that two patterns name counted twice.
BOOST_FIXTURE_TEST_CASE(globs_are_sorted_and_files_count_once, Folder) {
  write("b.txt", "bb");
  write("a.txt", "aa");
  write("B.txt", "BB");
  auto odd = write("[x].txt", "xx");

  auto corpus = open_corpus(text_of({odd, (path / "?.txt").string(), (path / "a*").string()}, 1));

  BOOST_TEST(corpus->train_samples() == 8);
  std::string order;
  for (int i = 0; i < 8; i += 2) order += static_cast<char>(train(*corpus, i, 1)[0]);
  BOOST_TEST(order == "xBab");
}

// Catches: gzip read as bytes, or only its first member.
BOOST_FIXTURE_TEST_CASE(gzip_is_the_text_it_holds, Folder) {
  write_gzip(path / "a.gz", "abc");
  auto two_members = write_gzip(path / "a.gz", "def", "ab");
  auto without_suffix = write_gzip(path / "b", "ghijkl");

  auto corpus = open_corpus(text_of({two_members, without_suffix}, 6));

  BOOST_TEST(train(*corpus, 0, 6) == (Tokens{'a', 'b', 'c', 'd', 'e', 'f', 256}));
  BOOST_TEST(train(*corpus, 1, 6) == (Tokens{'g', 'h', 'i', 'j', 'k', 'l', 256}));
}

// Catches: a fingerprint that depends on folder, machine or version, or is blind to the begin, the end or the length of
// a file, or to a block between them.
BOOST_FIXTURE_TEST_CASE(files_are_known_by_their_content, Folder) {
  auto text = write("a.txt", "abcdefgh");
  auto files = open_corpus(text_of({text, write_gzip(path / "b.gz", "abcdefgh")}, 4))->files();
  BOOST_REQUIRE(files.size() == 2);
  BOOST_TEST(files[0].name == "a.txt");
  BOOST_TEST(files[1].name == "b.gz");
  for (auto& file : files) {
    BOOST_TEST(file.bytes == 8);
    BOOST_TEST(file.tokens == 9);
    BOOST_TEST(file.fingerprint == 0x5cf03ce8b0bac9a9u);
  }
  BOOST_TEST(open_corpus({CorpusOptions::Type::Synthetic, {}, 0.05, 64, 1000, 7})->files().empty());

  std::vector<unsigned char> content(7 * 300000 + 65536, 'x');  // blocks begin at multiples of 300000
  auto whole = fingerprint(content);
  for (std::size_t at : {0, 65535, 300000, 4 * 300000 + 65535, 7 * 300000, 7 * 300000 + 65535}) {
    content[at] = 'y';
    BOOST_TEST(fingerprint(content) != whole, "byte " << at);
    content[at] = 'x';
  }
  BOOST_TEST(fingerprint(content) == whole);
  content.push_back('x');
  BOOST_TEST(fingerprint(content) != whole);
}

// Catches: a broken download that trains on what there is of it.
BOOST_FIXTURE_TEST_CASE(broken_gzip_is_refused, Folder) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += std::to_string(i * 7919);
  auto whole = write_gzip(path / "whole.gz", text);
  std::ifstream stream(whole, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(stream), {}};
  auto damaged = content;
  damaged[damaged.size() / 2] ^= 0x55;

  BOOST_TEST(refusal(text_of({whole}, 4)) == "accepted");
  BOOST_TEST(says(refusal(text_of({write("cut.gz", content.substr(0, content.size() / 2))}, 4)), {"cut.gz", "gzip"}));
  BOOST_TEST(says(refusal(text_of({write("bad.gz", damaged)}, 4)), {"bad.gz", "gzip"}));
  BOOST_TEST(says(refusal(text_of({write("plain.gz", "hello")}, 4)), {"plain.gz", "not a gzip file"}));
  BOOST_TEST(says(refusal(text_of({write_gzip(path / "empty.gz", "")}, 4)), {"empty.gz", "is empty"}));
}

// Catches: a refusal that does not name the file, or none at all.
BOOST_FIXTURE_TEST_CASE(unusable_files_are_named, Folder) {
  auto good = write("good.txt", "some text");
  std::filesystem::create_symlink(path / "nowhere", path / "dangling");

  BOOST_TEST(says(refusal(text_of({}, 4)), {"data.files: empty"}));
  BOOST_TEST(says(refusal(text_of({good, (path / "gone.txt").string()}, 4)), {"gone.txt", "No such file"}));
  BOOST_TEST(says(refusal(text_of({(path / "*.md").string()}, 4)), {"no file matches", "*.md"}));
  BOOST_TEST(says(refusal(text_of({path.string()}, 4)), {path.string(), "is a folder"}));
  // Opening a pipe waits for a writer: a run would hang at its start.
  auto pipe = path / "pipe.txt";
  BOOST_REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (auto& name : {pipe, path / "*.txt", std::filesystem::path("/dev/zero")}) {
    BOOST_TEST(says(refusal(text_of({name.string()}, 4)), {"not a regular file but a pipe"}), name);
  }
  BOOST_TEST(says(refusal(text_of({(path / "dangling").string()}, 4)), {"dangling", "No such file"}));
  BOOST_TEST(says(refusal(text_of({write("empty.txt", "")}, 4)), {"empty.txt", "is empty"}));
  BOOST_TEST(says(refusal(text_of({"/dev/null"}, 4)), {"/dev/null", "not a regular file"}));
  BOOST_TEST(
      says(refusal(text_of({good, write("short.txt", "abc")}, 4)), {"short.txt", "too short", "seq_len + 1 = 5"}));
}

// Catches: a message about one pattern's file with the place where another was written, or with none.
BOOST_FIXTURE_TEST_CASE(messages_begin_with_the_place_of_the_pattern, Folder) {
  auto begins = [&](std::vector<std::string> files, const std::string& begin) {
    auto options = text_of(std::move(files), 4);
    options.before_messages = {"run.yaml:1:1  ", "run.yaml:2:2  "};
    auto message = refusal(options);
    BOOST_TEST(message.starts_with(begin + "data.files: "), message);
  };
  auto good = write("good.txt", "long enough");
  auto gone = (path / "gone.txt").string();
  write("broken.gz", "hello");
  begins({gone, good}, "run.yaml:1:1  ");
  begins({good, gone}, "run.yaml:2:2  ");
  begins({good, (path / "*.md").string()}, "run.yaml:2:2  ");
  begins({good, path.string()}, "run.yaml:2:2  ");
  begins({good, (path / "*.gz").string()}, "run.yaml:2:2  ");  // found, and broken
  begins({good, write("short.txt", "abc")}, "run.yaml:2:2  ");
  begins({good, good, gone}, "");  // where it was written is not known
}

// Catches: an end-of-document token beyond the embedding.
BOOST_FIXTURE_TEST_CASE(the_vocabulary_holds_the_end_of_document, Folder) {
  auto options = text_of({write("a", "abcdefgh")}, 4);
  options.vocab_size = 256;
  BOOST_TEST(says(refusal(options), {"model.vocab_size: 256", "257"}));
  options.vocab_size = 257;
  BOOST_TEST(refusal(options) == "accepted");
}

// Catches: synthetic data that differs between calls, repeats for another seed or sample, or evaluates on training
// data.
BOOST_AUTO_TEST_CASE(synthetic_is_reproducible) {
  CorpusOptions options{CorpusOptions::Type::Synthetic, {}, 0.05, 64, 1000, 7};
  auto corpus = open_corpus(options);
  auto sample = train(*corpus, 123456789012, 64);

  BOOST_TEST(train(*open_corpus(options), 123456789012, 64) == sample);
  BOOST_TEST(train(*corpus, 123456789013, 64) != sample);
  BOOST_TEST(eval(*corpus, 5, 64) != train(*corpus, 5, 64));
  options.seed = 8;
  BOOST_TEST(train(*open_corpus(options), 123456789012, 64) != sample);
  for (auto token : sample) BOOST_TEST((token >= 0 && token < 1000));
}

// Catches: a change of the chain or its draws: runs on synthetic data would no longer repeat.
BOOST_AUTO_TEST_CASE(synthetic_golden) {
  auto corpus = open_corpus({CorpusOptions::Type::Synthetic, {}, 0.0, 7, 32, 1234});
  BOOST_TEST(train(*corpus, 0, 7) == (Tokens{19, 23, 5, 29, 30, 19, 24, 12}));
}

// Catches: noise in place of structure, which no model could learn.
BOOST_AUTO_TEST_CASE(synthetic_follows_its_chain) {
  constexpr std::int64_t kSeqLen = 4096;
  auto corpus = open_corpus({CorpusOptions::Type::Synthetic, {}, 0.0, kSeqLen, 32, 3});
  std::vector<std::vector<int>> successors(32 * 32, std::vector<int>(32));
  for (int i = 0; i < 50; ++i) {
    auto tokens = train(*corpus, i, kSeqLen);
    for (std::size_t t = 2; t < tokens.size(); ++t) ++successors[tokens[t - 2] * 32 + tokens[t - 1]][tokens[t]];
  }
  double expected = 0, total = 0;
  for (auto& counts : successors) {
    expected += *std::ranges::max_element(counts);
    for (int count : counts) total += count;
  }
  BOOST_TEST(expected / total == 7.0 / 8 + 1.0 / 8 / 32, boost::test_tools::tolerance(0.02));
}

// Catches: options that would divide by zero or cut nothing.
BOOST_AUTO_TEST_CASE(options_are_checked) {
  CorpusOptions options{CorpusOptions::Type::Synthetic, {}, 0.0, 8, 32, 0};
  BOOST_CHECK_NO_THROW(open_corpus(options));
  for (double fraction : {1.0, -0.1, std::nan("")}) {
    BOOST_CHECK_THROW(open_corpus({options.type, {}, fraction, 8, 32, 0}), ArgumentError);
  }
  BOOST_CHECK_THROW(open_corpus({options.type, {}, 0.0, 0, 32, 0}), ArgumentError);
  BOOST_CHECK_THROW(open_corpus({options.type, {}, 0.0, 8, 0, 0}), ArgumentError);
}
