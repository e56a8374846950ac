#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <sstream>

#include "config/config.h"

using namespace meshard;

namespace {

constexpr auto kBegin = "<!-- keys: begin -->\n", kEnd = "<!-- keys: end -->";

std::string readme() {
  std::ostringstream text;
  text << std::ifstream(MESHARD_README).rdbuf();
  return text.str();
}

std::string table() {
  std::string text = "| key | type | default | range | meaning |\n|---|---|---|---|---|\n";
  for (auto& row : config_keys()) {
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.key, row.type, row.default_value, row.range, row.text);
  }
  return text;
}

}  // namespace

// Catches: a key that README does not document, or documents otherwise than the program reads it. On failure the table
// to paste is printed.
BOOST_AUTO_TEST_CASE(the_key_table_of_the_readme_is_that_of_the_program) {
  auto text = readme();
  auto begin = text.find(kBegin), end = text.find(kEnd);
  BOOST_REQUIRE((begin != std::string::npos && end != std::string::npos));
  begin += std::string(kBegin).size();
  BOOST_TEST((text.substr(begin, end - begin) == table()), "between the key marks README should have:\n" << table());
}
