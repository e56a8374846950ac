#pragma once
// The numbers of all lines of a metrics.jsonl that a report needs, read in one pass without a tree per line.

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/curves.h"

namespace meshard {

/// One element a step with a line, all arrays of one length. NaN: the line has no such number, or null.
struct StepLines {
  std::vector<std::int64_t> steps;  ///< rising; a step that stands twice (a resume): the later line
  std::vector<double> tokens;       ///< consumed so far
  std::vector<double> bits_per_byte;
  std::array<std::vector<double>, kCurveNames.size()> curves;
  std::vector<bool> nonfinite;        ///< a loss, norm or named tensor was NaN or infinite
  std::vector<std::int64_t> offsets;  ///< of the lines in the file, bytes

  const std::vector<double>& operator[](Curve curve) const { return curves[static_cast<std::size_t>(curve)]; }
};

struct EvalLines {
  std::vector<std::int64_t> steps;
  std::vector<double> losses, bits_per_byte;
};

struct RunLines {
  StepLines steps;
  EvalLines evals;
  std::vector<nlohmann::json> headers;  ///< one per start
  bool torn = false;                    ///< the last line was cut off
  std::vector<int> unknown;             ///< numbers of other lines that are none of a run's
};

/// Local. Lines that are none of a run's are counted, not refused. Throws IoError if the file cannot be read.
RunLines read_run_lines(const std::filesystem::path& metrics);

}  // namespace meshard
