#include "report/thin.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshard {

std::pair<std::size_t, std::size_t> lines_of_point(std::size_t point, std::size_t points, std::size_t lines) {
  return {point * lines / points, (point + 1) * lines / points};
}

ThinCurve thin_curve(std::string name, std::span<const double> values, std::size_t points) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  ThinCurve curve{std::move(name)};
  points = std::min(points, values.size());
  for (std::size_t point = 0; point < points; ++point) {
    auto [first, last] = lines_of_point(point, points, values.size());
    double sum = 0.0, low = kNone, high = kNone;
    int finite = 0;
    for (auto value : values.subspan(first, last - first)) {
      if (!std::isfinite(value)) continue;
      ++finite;
      sum += value;
      low = std::fmin(low, value);
      high = std::fmax(high, value);
    }
    curve.mean.push_back(finite ? sum / finite : kNone);
    if (points == values.size()) continue;
    curve.low.push_back(low);
    curve.high.push_back(high);
  }
  if (curve.low == curve.high) curve.low = curve.high = {};
  return curve;
}

std::vector<std::int64_t> thin_steps(std::span<const std::int64_t> steps, std::size_t points) {
  std::vector<std::int64_t> thin;
  points = std::min(points, steps.size());
  for (std::size_t point = 0; point < points; ++point) {
    auto [first, last] = lines_of_point(point, points, steps.size());
    thin.push_back(steps[(first + last - 1) / 2]);
  }
  return thin;
}

}  // namespace meshard
