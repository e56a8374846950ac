#pragma once
// Small matrix products inside a kernel: C (+)= A B with C cut into register tiles of 6 x 16. A may have any strides,
// so that a transposed operand needs no copy; B and C are row-major with a multiple of 16 columns.

#include <algorithm>

#include "nn/simd.h"

namespace meshard {

constexpr std::int64_t kTileRows = 6;
constexpr std::int64_t kTileColumns = 2 * simd::kLanes;

inline std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

struct LeftOperand {
  const float* data;
  std::int64_t row_stride;
  std::int64_t depth_stride;
};

struct RowMajor {
  float* data;
  std::int64_t stride;
};

/// to = from, transposed: for a right operand whose columns are wanted as rows.
inline void transpose(RowMajor from, std::int64_t rows, std::int64_t columns, RowMajor to) {
  constexpr std::int64_t kBlock = simd::kLanes;
  for (std::int64_t r0 = 0; r0 < rows; r0 += kBlock) {
    auto r1 = std::min(rows, r0 + kBlock);
    for (std::int64_t c = 0; c < columns; ++c) {
      for (auto r = r0; r < r1; ++r) to.data[c * to.stride + r] = from.data[r * from.stride + c];
    }
  }
}

template <int kRows>
inline void tile_product(std::int64_t depth, LeftOperand a, RowMajor b, RowMajor c, bool add) {
  simd::Floats acc[kRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    acc[r][0] = add ? simd::load(c.data + r * c.stride) : simd::Floats{};
    acc[r][1] = add ? simd::load(c.data + r * c.stride + simd::kLanes) : simd::Floats{};
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    auto b0 = simd::load(b.data + k * b.stride), b1 = simd::load(b.data + k * b.stride + simd::kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      auto left = simd::splat(a.data[r * a.row_stride + k * a.depth_stride]);
      acc[r][0] += left * b0;
      acc[r][1] += left * b1;
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    simd::store(c.data + r * c.stride, acc[r][0]);
    simd::store(c.data + r * c.stride + simd::kLanes, acc[r][1]);
  }
}

/// Local. A strip of `rows` (1 to 6) rows of C, `columns` (a multiple of 16) wide: C = A B, or C += A B if `add`.
inline void strip_product(std::int64_t rows, std::int64_t columns, std::int64_t depth, LeftOperand a, RowMajor b,
                          RowMajor c, bool add) {
  for (std::int64_t j = 0; j < columns; j += kTileColumns) {
    const RowMajor bj{b.data + j, b.stride}, cj{c.data + j, c.stride};
    switch (rows) {
      case 6:
        tile_product<6>(depth, a, bj, cj, add);
        break;
      case 5:
        tile_product<5>(depth, a, bj, cj, add);
        break;
      case 4:
        tile_product<4>(depth, a, bj, cj, add);
        break;
      case 3:
        tile_product<3>(depth, a, bj, cj, add);
        break;
      case 2:
        tile_product<2>(depth, a, bj, cj, add);
        break;
      default:
        tile_product<1>(depth, a, bj, cj, add);
    }
  }
}

}  // namespace meshard
