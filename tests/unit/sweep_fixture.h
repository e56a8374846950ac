#pragma once
// What the tests of sweeps share: a base config and a folder of their own, and ways to look at answers.

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "sweep/folder.h"
#include "unit/config_text.h"

namespace meshard::testing {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

struct SweepFixture {
  fs::path folder = fs::temp_directory_path() / ("meshard-sweep-" + std::to_string(getpid()));
  fs::path base = folder / "base.yaml", out = folder / "out";
  SweepFixture() {
    fs::create_directory(folder);
    write(base, kMinimal);
  }
  ~SweepFixture() { fs::remove_all(folder); }

  static void write(const fs::path& file, const std::string& text) { std::ofstream(file, std::ios::binary) << text; }
  static std::string read(const fs::path& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }
  Sweep sweep(const std::string& parts) const {
    return parse_sweep("schema: 1\nbase: " + base.string() + "\n" + parts, "sweep.yaml");
  }
  std::vector<CheckedPoint> checked(const std::string& parts, SweepLimits limits = {}) const {
    return check_sweep(sweep(parts), limits);
  }
  /// What a first `meshard sweep` leaves behind.
  void write_sweep(const std::string& parts, std::optional<int> ranks = {}) const {
    SweepFolder(out).write(sweep(parts), checked(parts, {.ranks = ranks}), ranks);
  }
  Sweep adopted(const std::string& parts) const {
    auto sweep = this->sweep(parts);
    adopt_record(sweep, *read_sweep_record(out), out);
    return sweep;
  }
};

template <class Work>
std::string refusal_of(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

inline bool says(const std::string& text, const Texts& parts) {
  for (auto& part : parts) {
    if (text.find(part) != std::string::npos) continue;
    BOOST_TEST_MESSAGE("no `" << part << "` in\n" << text);
    return false;
  }
  return true;
}

inline Texts lines_of(const std::string& text) {
  Texts lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace meshard::testing
