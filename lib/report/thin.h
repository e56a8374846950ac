#pragma once
// Long curves as some hundred points that still show their extremes.

#include <span>

#include "report/report.h"

namespace meshard {

/// Local. The lines that point `point` of `points` stands for: [first, last), never empty while points <= lines.
std::pair<std::size_t, std::size_t> lines_of_point(std::size_t point, std::size_t points, std::size_t lines);

/// Local. At most `points` points. Means, least and greatest values are of the finite values of a point's lines.
ThinCurve thin_curve(std::string name, std::span<const double> values, std::size_t points);

/// Local. The step in the middle of each point's lines.
std::vector<std::int64_t> thin_steps(std::span<const std::int64_t> steps, std::size_t points);

}  // namespace meshard
