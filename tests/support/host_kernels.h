#pragma once
// The kernels' row bodies run on the host: lanes one after the other, sums in the order of CUDA's shuffles. With it the
// launch layer and whole models run on what nvcc compiles for a device.

#include <vector>

#include "nn/device/calls.h"
#include "nn/device/launch.h"

namespace meshard::kernels {

struct HostRunner {
  static int architecture() { return 90; }

  /// As sum_of_lanes() in kernels.cu.
  static float sum_of_lanes(std::vector<float> x) {
    std::vector<float> warps;
    for (std::size_t warp = 0; warp < x.size(); warp += 32) {
      for (int step = 16; step > 0; step /= 2) {
        auto before = std::vector(x.begin() + warp, x.begin() + warp + 32);
        for (int lane = 0; lane < 32; ++lane) x[warp + lane] = before[lane] + before[lane ^ step];
      }
      warps.push_back(x[warp]);
    }
    float sum = warps.size() == 1 ? warps[0] : 0.0f;
    for (std::size_t i = 0; i < warps.size() && warps.size() > 1; ++i) sum += warps[i];
    return sum;
  }

  template <class Partial, class Finish>
  static void run_row(int lanes, Partial partial, Finish finish) {
    std::vector<float> parts;
    for (int lane = 0; lane < lanes; ++lane) parts.push_back(partial(lane));
    auto sum = sum_of_lanes(parts);
    for (int lane = 0; lane < lanes; ++lane) finish(lane, sum);
  }

  template <class Body>
  static const char* rows(const Body& body, std::int64_t rows, int lanes, Stream) {
    for (std::int64_t row = 0; row < rows; ++row) {
      run_row(
          lanes, [&](int lane) { return body.partial(row, lane, lanes); },
          [&](int lane, float sum) { body.finish(row, lane, lanes, sum); });
    }
    return nullptr;
  }

  template <class Body>
  static const char* grouped(const Body& body, std::int64_t rows, std::int64_t groups, std::int64_t size, int lanes,
                             Stream) {
    std::vector<float> sums(size);
    for (std::int64_t group = 0; group < groups; ++group) {
      for (int lane = 0; lane < lanes; ++lane) body.clear(lane, lanes, sums.data());
      for (auto row = rows * group / groups; row < rows * (group + 1) / groups; ++row) {
        run_row(
            lanes, [&](int lane) { return body.partial(row, lane, lanes, sums.data()); },
            [&](int lane, float sum) { body.finish(row, lane, lanes, sum); });
      }
      for (int lane = 0; lane < lanes; ++lane) body.keep(group, lane, lanes, sums.data());
    }
    return nullptr;
  }

  static const char* columns(const float* partials, std::int64_t rows, std::int64_t size, float* to, Stream) {
    for (std::int64_t column = 0; column < size; ++column) {
      to[column] = 0.0f;
      for (int part = 0; part < 8; ++part) to[column] += column_part(partials, rows, size, column, part, 8);
    }
    return nullptr;
  }

  template <class Body>
  static const char* vectors(const Body& body, Stream) {
    for (std::int64_t i = 0; i < body.count(); ++i) body(i);
    return nullptr;
  }
};

inline constexpr Table kHostTable = Calls<HostRunner>::table(/*on_host=*/true);

}  // namespace meshard::kernels
