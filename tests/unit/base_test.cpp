#include <boost/test/unit_test.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/hash.h"
#include "base/json_lines.h"
#include "base/whole_file.h"

using namespace meshard;

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
