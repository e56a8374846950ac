#include <fcntl.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/hash.h"
#include "base/json_lines.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/text.h"
#include "base/whole_file.h"
#include "support/peak_memory.h"

using namespace meshard;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {
std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}
struct TempFile {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("meshard-base-" + std::to_string(getpid()));
  ~TempFile() { std::filesystem::remove(path); }
};

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

/// What read_json() says of a text, by both kinds of value, which must agree; "accepted".
std::string refusal(const std::string& text, const JsonLimits& limits = {}) {
  auto said = [&](auto read) -> std::string {
    try {
      read();
      return "accepted";
    } catch (const IoError& error) {
      return error.what();
    }
  };
  auto plain = said([&] { read_json<json>(text, "x.json", limits); });
  BOOST_TEST(plain == said([&] { read_json<ordered_json>(text, "x.json", limits); }));
  BOOST_TEST((plain == "accepted") == read_json_if_sound<json>(text, limits).has_value());
  return plain;
}

/// What `print` writes to a stream.
template <typename Print>
std::string printed(std::FILE* stream, const Print& print) {
  TempFile file;
  std::fflush(stream);
  int kept = dup(fileno(stream)), there = open(file.path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  dup2(there, fileno(stream));
  print();
  std::fflush(stream);
  dup2(kept, fileno(stream));
  close(kept);
  close(there);
  return read(file.path);
}
}  // namespace

// Catches: a hash that changes between versions or machines; seeds and model hashes would change with it.
BOOST_AUTO_TEST_CASE(hashes_are_the_published_ones) {
  BOOST_TEST(hash_text("") == 0xcbf29ce484222325u);
  BOOST_TEST(hash_text("foobar") == 0x85944171f73967e8u);
  BOOST_TEST(mix64(0) == 0xe220a8397b1dcdafu);
}

// Catches: a run resumed after a kill that glues its first line to the torn one.
BOOST_FIXTURE_TEST_CASE(a_torn_last_line_is_ended_first, TempFile) {
  std::ofstream(path) << "{\"step\":1}\n{\"ste";
  JsonLines(path).append({{"step", 2}});
  BOOST_TEST(read(path) == "{\"step\":1}\n{\"ste\n{\"step\":2}\n");
}

// Catches: NaN literals, which no JSON reader takes.
BOOST_FIXTURE_TEST_CASE(nan_becomes_null, TempFile) {
  JsonLines(path).append({{"loss", std::nan("")}});
  BOOST_TEST(read(path) == "{\"loss\":null}\n");
}

// Catches: a full disk that goes unnoticed until the metrics are missed.
BOOST_AUTO_TEST_CASE(a_full_disk_is_an_error_that_names_the_file) {
  BOOST_CHECK_EXCEPTION(JsonLines("/dev/full").append({{"a", 1}}), IoError, [](const IoError& error) {
    return std::string(error.what()).find("/dev/full: No space left on device") != std::string::npos;
  });
}

// Catches: a link that is replaced instead of followed, and with it a device: /dev/full, /dev/stdout.
BOOST_FIXTURE_TEST_CASE(a_whole_file_goes_where_a_link_leads, TempFile) {
  auto link = path;
  link += ".link";
  std::filesystem::create_symlink(path, link);
  write_whole_file(path, "old");
  write_whole_file(link, "new");
  BOOST_TEST(read(path) == "new");
  BOOST_TEST(std::filesystem::is_symlink(link));
  std::filesystem::remove(link);
  std::filesystem::create_symlink("/dev/full", link);
  BOOST_CHECK_EXCEPTION(write_whole_file(link, "x"), IoError, [](const IoError& error) {
    return std::string(error.what()).find("No space left on device") != std::string::npos;
  });
  BOOST_TEST(std::filesystem::is_symlink(link));
  BOOST_TEST(std::filesystem::is_character_file("/dev/full"));
  std::filesystem::remove(link);
}

// Catches: an error that does not say where it was raised.
BOOST_AUTO_TEST_CASE(an_error_knows_its_place) {
  ArgumentError error("x");
  BOOST_TEST(error.place().starts_with("base_test.cpp:"));
  BOOST_TEST(error.code() == kExitFailure);
}

// Catches: JSON of others that is walked, copied or freed by recursion as deep as it likes (100,000 levels in a
// checkpoint ended the process); brackets in texts taken for nesting.
BOOST_AUTO_TEST_CASE(json_is_not_nested_without_end) {
  auto arrays = [](int depth) { return repeat("[", depth) + repeat("]", depth); };
  BOOST_TEST(refusal(arrays(64)) == "accepted");
  BOOST_TEST(refusal("[\n" + arrays(64) + "]") == "x.json: line 2, column 64: nested more than 64 deep");
  BOOST_TEST(refusal(repeat("[", 100'000)).ends_with("nested more than 64 deep"));
  BOOST_TEST(refusal(repeat("{\"a\":", 100'000)).ends_with("nested more than 64 deep"));
  BOOST_TEST(refusal("[\"" + repeat("[{\\\"", 100) + "\"]") == "accepted");
  BOOST_TEST(refusal("[[1]]", {.depth = 1}) == "x.json: line 1, column 2: nested more than 1 deep");
}

// Catches: an error without file, place and cause; the last of two equal keys taken in silence; a whole text of
// gigabytes in a message.
BOOST_AUTO_TEST_CASE(json_is_refused_by_place_and_cause) {
  BOOST_TEST(
      refusal("{\"a\": 1,\n  x}").starts_with("x.json: line 2, column 3: syntax error while parsing object key"));
  BOOST_TEST(refusal("").starts_with("x.json: line 1, column 1: "));
  BOOST_TEST(refusal("[1] 2").starts_with("x.json: line 1, column 5: "));
  BOOST_TEST(refusal("[1").starts_with("x.json: line 1, column 3: "));
  BOOST_TEST(refusal("[\"\xff\"]").find("ill-formed UTF-8") != std::string::npos);
  BOOST_TEST(refusal("[1e999]").find("number overflow") != std::string::npos);
  auto twice = "x.json: the key `b` stands twice in one object; expected it once";
  BOOST_TEST(refusal(R"({"a": 1, "b": 2, "c": {"b": 3}, "b": 4})") == twice);
  BOOST_TEST(refusal(R"([{"b": 1, "\u0062": 2}])") == twice);
  BOOST_TEST(refusal("[1, 2]", {.text = 5}) == "x.json: 6 bytes are more than the 5 that it may have");
  BOOST_TEST(refusal("[" + repeat("\"x", 1'000'000)).size() < 300);
  BOOST_TEST(refusal("\"" + std::string(9 << 20, 'x') + "\"").ends_with("a text of more than 8388608 bytes"));
}

// Catches: what stands behind a NUL byte, which the parser takes for the end: a changed file would pass for the signed
// one. And a byte order mark, which Python's json refuses.
BOOST_AUTO_TEST_CASE(json_is_read_to_its_end) {
  const std::string nul(1, '\0');
  for (auto& rest : {"", " ", "\n[2]", "garbage"}) {
    BOOST_TEST(refusal("[1,\n 2]" + nul + rest) ==
               "x.json: line 2, column 4: a NUL byte at offset 7; expected text in UTF-8 without any");
  }
  BOOST_TEST(refusal(nul + "[1]").starts_with("x.json: line 1, column 1: a NUL byte at offset 0"));
  BOOST_TEST(refusal("[\"" + nul + "\"]").starts_with("x.json: line 1, column 3: a NUL byte at offset 2"));
  BOOST_TEST(refusal("[\"\\u0000\"]") == "accepted");
  BOOST_TEST(refusal("\xef\xbb\xbf[1]") ==
             "x.json: line 1, column 1: a byte order mark (EF BB BF); expected UTF-8 without one");
  BOOST_TEST(refusal("\xef\xbb\xbf").find("byte order mark") != std::string::npos);
  BOOST_TEST(refusal("[\"\xef\xbb\xbf\"]") == "accepted");  // in a text it is a character
}

// Catches: a file that takes many times its size (a list of empty lists took 50 times); a bound that real files meet.
BOOST_AUTO_TEST_CASE(json_takes_a_stated_multiple_of_memory) {
  const std::string dense[] = {"1,", "[],", "{},", "\"\",", "[[1]],", "{\"\":[]},"};
  for (auto& item : dense) {
    auto text = "[" + repeat(item, static_cast<int>(6'000'000 / item.size())) + "0]";
    auto most = 8 * text.size() + (64 << 20);
    BOOST_TEST(peak_memory([&] { read_json_if_sound<json>(text); }) < most, item);
    BOOST_TEST(peak_memory([&] { read_json_if_sound<ordered_json>(text); }) < most, item);
  }
  std::string keys = "{", header = "{";
  for (int i = 0; i < 100'000; ++i) {
    auto name = "\"model.layers." + std::to_string(i) + ".mlp.gate.weight\":";
    keys += name + "0,";
    header += name + R"({"dtype":"BF16","shape":[64,1],"data_offsets":[123456789,123456917]},)";
  }
  BOOST_TEST(refusal(header + "\"end\": {}}") == "accepted");
  BOOST_TEST(refusal(keys + "\"end\": 0}") == "accepted");  // quadratic: minutes
}

// Catches: a writer that dies of bytes which are no UTF-8 (names of files, hosts, the environment): every save did.
BOOST_FIXTURE_TEST_CASE(any_bytes_can_be_written_as_json, TempFile) {
  ordered_json line{{"host", "n\xffode"}, {"loss", 1.5}};
  JsonLines(path).append(line);
  BOOST_TEST(read(path) ==
             "{\"host\":\"n\xef\xbf\xbd"
             "ode\",\"loss\":1.5}\n");
  BOOST_TEST(read_json_file<ordered_json>(path).at("loss") == 1.5);
  BOOST_TEST(json_text(json{{"a", {1}}}, 1) == "{\n \"a\": [\n  1\n ]\n}");
}

// Catches: JSON parsed or printed past the one reader that is bounded and the one writer that takes any bytes.
BOOST_AUTO_TEST_CASE(nothing_else_parses_or_prints_json) {
  const std::string own[] = {"json::parse(", "Json::parse(", "sax_parse(", ".dump(", "->dump("};
  for (auto* room : {"/lib", "/app"}) {
    for (auto& entry : std::filesystem::recursive_directory_iterator(MESHARD_SOURCES + std::string(room))) {
      auto file = entry.path().string();
      if (!file.ends_with(".cpp") && !file.ends_with(".h")) continue;
      if (file.ends_with("/base/json_text.cpp")) continue;
      std::ifstream stream(file);
      for (std::string line; std::getline(stream, line);) {
        bool of_a_folder = line.find("folder.dump()") != std::string::npos;  // where a run that hangs says so
        for (auto& call : own) BOOST_TEST((of_a_folder || line.find(call) == std::string::npos), file << ": " << line);
      }
    }
  }
}

// Catches: a file that a pipe or a device stands for (a pipe would wait for ever), and errors that do not name it.
BOOST_FIXTURE_TEST_CASE(json_files_are_regular_files, TempFile) {
  auto said = [](const std::filesystem::path& file, const JsonLimits& limits = {}) -> std::string {
    try {
      read_json_file<json>(file, limits);
      return "accepted";
    } catch (const IoError& error) {
      return error.what();
    }
  };
  BOOST_TEST(said("/dev/zero") == "cannot read /dev/zero: no regular file");
  BOOST_TEST(said("/tmp") == "cannot read /tmp: no regular file");
  BOOST_TEST(said(path) == "cannot read " + path.string() + ": No such file or directory");
  std::ofstream(path) << "[1, 2]";
  BOOST_TEST(said(path) == "accepted");
  BOOST_TEST(said(path, {.text = 5}).starts_with(path.string() + ": 6 bytes are more than the 5"));
}

// Catches: control sequences out of a file that a terminal obeys; JSON that is none any more for it; printing twice.
BOOST_AUTO_TEST_CASE(text_of_others_is_made_printable) {
  BOOST_TEST(printable("plain, \xc3\xa9\xe2\x86\x92\n\t") == "plain, \xc3\xa9\xe2\x86\x92\n\t");
  BOOST_TEST(printable("\x1b[2J\r\a") == "\\x1b[2J\\x0d\\x07");
  BOOST_TEST(printable("\x7f \xc2\x9b \xe2\x80\xae \xff") == "\\u007f \\u009b \\u202e \\xff");
  BOOST_TEST(printable(printable("\x1b\xff")) == printable("\x1b\xff"));
  // What ends a line for some, or is not seen at all: U+2028, U+2029, U+200B, U+FEFF, U+2060.
  BOOST_TEST(printable("a\xe2\x80\xa8" "b\xe2\x80\xa9\xe2\x80\x8b\xef\xbb\xbf\xe2\x81\xa0") ==
             "a\\u2028b\\u2029\\u200b\\ufeff\\u2060");
  BOOST_TEST(on_one_line("key\nok: all is well\tand\r\xe2\x80\xa8") == "key\\nok: all is well\\tand\\x0d\\u2028");
  json hostile{{"\x1b[31m\x7f\xc2\x9b", "\xe2\x80\xae"}};
  auto text = printable(json_text(hostile));
  BOOST_TEST(text == R"({"\u001b[31m\u007f\u009b":"\u202e"})");
  BOOST_TEST((read_json<json>(text, "text") == hostile));
}

// Catches: a way to the terminal, or into the log file, that keys and names out of a file can take with their control
// sequences; a progress line whose own are lost.
BOOST_FIXTURE_TEST_CASE(nothing_printed_is_obeyed_by_a_terminal, TempFile) {
  TempFile log_file;
  log_file.path += ".log";
  BOOST_TEST(printed(stdout, [&] {
               Log log;
               log.tee(log_file.path);
               log.progress("50 % of \x1b[2J");
               log.print("key \x1b[31m\nand \x9b");
             }) == "\r\033[K50 % of \\x1b[2J\r\033[Kkey \\x1b[31m\nand \\x9b\n");
  BOOST_TEST(read(log_file.path) == "key \\x1b[31m\nand \\x9b\n");
  BOOST_TEST(printed(stdout, [] { Log::output("a\tb\x1b"); }) == "a\tb\\x1b");
  BOOST_TEST(printed(stderr, [] { Log::error("no \x1b[0m"); }) == "no \\x1b[0m\n");
}
