#pragma once
// Run folders for the tests of reports, line by line.

#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "report/lines.h"
#include "report/report.h"

namespace meshard::report_test {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

inline const std::string kVersion = "0.1.0",
                         kHeader = R"({"header":{"versions":"meshard      0.1.0\nMPI  4","ranks":2}})";
inline const std::string kDone = R"({"end":{"exit":0,"step":2,"reason":"done"}})";

struct ReportFolder {
  fs::path folder = fs::temp_directory_path() / ("meshard-report-" + std::to_string(getpid()));
  ReportFolder() { fs::create_directory(folder); }
  ~ReportFolder() { fs::remove_all(folder); }

  fs::path write(const fs::path& file, const std::string& text) const {
    fs::create_directories((folder / file).parent_path());
    std::ofstream(folder / file, std::ios::binary) << text;
    return folder / file;
  }
  /// A run of these lines, each ended; the config as it stands.
  fs::path run(const std::string& name, const std::vector<std::string>& lines, const std::string& config = "{}") const {
    std::string text;
    for (auto& line : lines) text += line + "\n";
    write(fs::path(name) / "config.yaml", config);
    return write(fs::path(name) / "metrics.jsonl", text).parent_path();
  }
  RunLines lines(const std::string& text) const { return read_run_lines(write("lines.jsonl", text)); }
  RunsReport report(const std::vector<std::string>& names) const {
    std::vector<fs::path> folders;
    for (auto& name : names) folders.push_back(folder / name);
    return make_report(folders, kVersion);
  }
};

inline std::string step_line(int step, double loss, double tokens_per_s = 100.0) {
  return Json{{"step", step},
              {"tokens", 10 * step},
              {"loss", loss},
              {"bits_per_byte", 2 * loss},
              {"grad_norm", 1.5},
              {"step_ms", {{"min", 1.0}, {"median", 4.0}, {"max", 9.0}}},
              {"tokens_per_s", tokens_per_s},
              {"mem_peak_bytes", 1000 + step % 3},
              {"data_ms", 0.25},
              {"nonfinite", Json::array()}}
      .dump();
}

inline std::string eval_line(int step, double loss) {
  return Json{{"step", step}, {"eval_loss", loss}, {"eval_bits_per_byte", 3 * loss}}.dump();
}

inline bool says(const std::string& message, std::initializer_list<std::string> parts) {
  return std::ranges::all_of(parts, [&](const std::string& part) {
    bool found = message.find(part) != std::string::npos;
    if (!found) BOOST_TEST_MESSAGE("missing `" << part << "` in: " << message);
    return found;
  });
}

}  // namespace meshard::report_test
