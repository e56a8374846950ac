#pragma once
// The lanes of a rank: what is put on one runs in order, and beside what is on the others. comm/DESIGN.md section 10.

#include <array>
#include <string_view>

namespace meshard {

/// Compute is where the caller's own tensor operations run; Copy is for copies between host and device.
enum class Lane { Compute, Gather, Reduce, Outer, Exchange, Copy };

inline constexpr std::array<std::string_view, 6> kLaneNames = {"compute", "gather", "reduce", "outer", "exchange",
                                                               "copy"};

inline constexpr int kLaneCount = kLaneNames.size();

/// Local. "compute", "gather", ...
constexpr std::string_view lane_name(Lane lane) {
  return kLaneNames[static_cast<std::size_t>(lane)];
}

}  // namespace meshard
