#pragma once
// The bodies of the kernels in kernels.h, as nvcc compiles them for a device and any compiler for the host, where tests
// run them over rows. A row is shared by `lanes` threads. Two kinds of bodies:
//   a row body     partial(row, lane, lanes) gives each lane's part of one sum; when all of them are added up,
//                  finish(row, lane, lanes, sum) ends the row. A lane meets the same elements in both.
//   a vector body  operator()(i) does the i-th vector of kVector elements, all by itself.
// kVector is 16 bytes' worth of elements, or 1 where rows or pointers do not allow that.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "nn/device/kernels.h"

#ifdef __CUDACC__
#define MESHARD_BODY __host__ __device__ __forceinline__
#else
#define MESHARD_BODY inline
#endif

namespace meshard::kernels {

struct BFloat16 {
  std::uint16_t bits;
};

MESHARD_BODY float widened(float x) {
  return x;
}
MESHARD_BODY float widened(BFloat16 x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
  float wide;
  memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

/// Rounded to nearest even; NaN stays NaN.
MESHARD_BODY void narrow(float x, float& to) {
  to = x;
}
MESHARD_BODY void narrow(float x, BFloat16& to) {
#ifdef __CUDA_ARCH__
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
#else
  std::uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  to.bits = x != x ? 0x7fc0 : static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

/// What x becomes when it is stored as T and read back.
template <class T>
MESHARD_BODY float rounded(float x) {
  T stored;
  narrow(x, stored);
  return widened(stored);
}

template <class T>
constexpr int kWidest = 16 / sizeof(T);

/// kVector elements in registers, read and written at once.
template <class T, int kVector>
struct alignas(sizeof(T) * kVector) Vector {
  T values[kVector];
  MESHARD_BODY float operator[](int i) const { return widened(values[i]); }
  MESHARD_BODY void set(int i, float x) { narrow(x, values[i]); }
};

template <int kVector, class T>
MESHARD_BODY Vector<T, kVector> load(const T* from) {
  return *reinterpret_cast<const Vector<T, kVector>*>(from);
}
template <class T, int kVector>
MESHARD_BODY void store(T* to, const Vector<T, kVector>& v) {
  *reinterpret_cast<Vector<T, kVector>*>(to) = v;
}

/// kVector floats of a table: two loads of 16 bytes where that is 8.
template <int kVector>
MESHARD_BODY Vector<float, kVector> load_floats(const float* from) {
  Vector<float, kVector> v;
  constexpr int kStep = kVector < 4 ? kVector : 4;
#ifdef __CUDACC__
#pragma unroll
#endif
  for (int i = 0; i < kVector; i += kStep) {
    auto part = load<kStep>(from + i);
    for (int j = 0; j < kStep; ++j) v.values[i + j] = part.values[j];
  }
  return v;
}

/// Calls body(first element) for each vector of a row that is this lane's.
template <int kVector, class Body>
MESHARD_BODY void for_lane(std::int64_t size, int lane, int lanes, Body body) {
  for (std::int64_t i = static_cast<std::int64_t>(lane) * kVector; i < size;
       i += static_cast<std::int64_t>(lanes) * kVector) {
    body(i);
  }
}

// ---- root mean square norm

template <class T, int kVector>
struct RmsNormForwardRow {
  RmsNormForward a;

  MESHARD_BODY float partial(std::int64_t row, int lane, int lanes) const {
    const T* x = static_cast<const T*>(a.x) + row * a.size;
    const T* addend = a.addend ? static_cast<const T*>(a.addend) + row * a.size : nullptr;
    T* sum = a.addend ? static_cast<T*>(a.sum) + row * a.size : nullptr;
    float squares = 0.0f;
    for_lane<kVector>(a.size, lane, lanes, [&](std::int64_t i) {
      auto v = load<kVector>(x + i);
      if (addend) {
        const auto other = load<kVector>(addend + i);
        for (int j = 0; j < kVector; ++j) v.set(j, v[j] + other[j]);
        store(sum + i, v);
      }
      for (int j = 0; j < kVector; ++j) squares += v[j] * v[j];
    });
    return squares;
  }

  MESHARD_BODY void finish(std::int64_t row, int lane, int lanes, float squares) const {
    const T* source = static_cast<const T*>(a.addend ? a.sum : a.x) + row * a.size;
    const T* weight = static_cast<const T*>(a.weight);
    T* normed = static_cast<T*>(a.normed) + row * a.size;
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(a.size) + a.eps);
    for_lane<kVector>(a.size, lane, lanes, [&](std::int64_t i) {
      auto v = load<kVector>(source + i);
      const auto w = load<kVector>(weight + i);
      for (int j = 0; j < kVector; ++j) v.set(j, rounded<T>(v[j] * scale) * w[j]);
      store(normed + i, v);
    });
    if (lane == 0) a.rstd[row] = scale;
  }
};

/// Beside each row's gradient, a lane adds to the sums over a group's rows of its own columns of the weight's gradient:
/// `sums` [size], which end as the group's row of a.partials.
template <class T, int kVector>
struct RmsNormBackwardRow {
  RmsNormBackward a;

  MESHARD_BODY void clear(int lane, int lanes, float* sums) const {
    for_lane<kVector>(a.size, lane, lanes, [&](std::int64_t i) {
      for (int j = 0; j < kVector; ++j) sums[i + j] = 0.0f;
    });
  }

  MESHARD_BODY void keep(std::int64_t group, int lane, int lanes, const float* sums) const {
    float* to = a.partials + group * a.size;
    for_lane<kVector>(a.size, lane, lanes, [&](std::int64_t i) {
      for (int j = 0; j < kVector; ++j) to[i + j] = sums[i + j];
    });
  }

  MESHARD_BODY float partial(std::int64_t row, int lane, int lanes, float* sums) const {
    const T* grad = static_cast<const T*>(a.grad_normed) + row * a.size;
    const T* source = static_cast<const T*>(a.sum) + row * a.size;
    const T* weight = static_cast<const T*>(a.weight);
    const float scale = a.rstd[row];
    float products = 0.0f;
    for_lane<kVector>(a.size, lane, lanes, [&](std::int64_t i) {
      const auto g = load<kVector>(grad + i), x = load<kVector>(source + i), w = load<kVector>(weight + i);
      for (int j = 0; j < kVector; ++j) {
        const float unit = x[j] * scale;
        products += g[j] * w[j] * unit;
        sums[i + j] += g[j] * rounded<T>(unit);
      }
    });
    return products;
  }

  MESHARD_BODY void finish(std::int64_t row, int lane, int lanes, float products) const {
    const T* grad = static_cast<const T*>(a.grad_normed) + row * a.size;
    const T* grad_sum = a.grad_sum ? static_cast<const T*>(a.grad_sum) + row * a.size : nullptr;
    const T* source = static_cast<const T*>(a.sum) + row * a.size;
    const T* weight = static_cast<const T*>(a.weight);
    T* grad_x = static_cast<T*>(a.grad_x) + row * a.size;
    const float scale = a.rstd[row], mean = products / static_cast<float>(a.size);
    for_lane<kVector>(a.size, lane, lanes, [&](std::int64_t i) {
      const auto g = load<kVector>(grad + i), x = load<kVector>(source + i), w = load<kVector>(weight + i);
      Vector<T, kVector> more{}, result;
      if (grad_sum) more = load<kVector>(grad_sum + i);
      for (int j = 0; j < kVector; ++j) result.set(j, (g[j] * w[j] - x[j] * scale * mean) * scale + more[j]);
      store(grad_x + i, result);
    });
  }
};

/// One lane's part of a column's sum over `rows` partial sums: every lanes-th of them.
MESHARD_BODY float column_part(const float* partials, std::int64_t rows, std::int64_t size, std::int64_t column,
                               int lane, int lanes) {
  float sum = 0.0f;
  for (std::int64_t row = lane; row < rows; row += lanes) sum += partials[row * size + column];
  return sum;
}

// ---- rotary positions

/// A vector body over [batch, positions, heads][half / kVector]: kVector pairs.
template <class T, int kVector>
struct RotaryPairs {
  Rotary a;

  std::int64_t count() const { return a.batch * a.positions * a.heads * (a.half / kVector); }

  MESHARD_BODY void operator()(std::int64_t i) const {
    const std::int64_t vectors = a.half / kVector;
    const std::int64_t head = i / vectors, pair = (i - head * vectors) * kVector;
    const std::int64_t position = head / a.heads % a.positions;
    const T* from = static_cast<const T*>(a.from) + head * a.dim;
    T* to = static_cast<T*>(a.to) + head * a.dim;
    const auto cos = load_floats<kVector>(a.cos + position * a.half + pair);
    const auto sin = load_floats<kVector>(a.sin + position * a.half + pair);
    const bool halves = a.pairing == Pairing::Halves;
    const std::int64_t first = halves ? pair : 2 * pair, second = halves ? a.half + pair : first + kVector;
    const auto low = load<kVector>(from + first), high = load<kVector>(from + second);
    Vector<T, kVector> low_out, high_out;
    for (int j = 0; j < kVector; ++j) {
      const float s = sin.values[j] * a.direction, c = cos.values[j];
      // Neighbours: of 2 kVector elements in a row, pair j is elements 2 j and 2 j + 1.
      const int p = 2 * j, q = 2 * j + 1;
      const float x = halves ? low[j] : (p < kVector ? low[p % kVector] : high[p % kVector]);
      const float y = halves ? high[j] : (q < kVector ? low[q % kVector] : high[q % kVector]);
      const float turned_x = x * c - y * s, turned_y = y * c + x * s;
      if (halves) {
        low_out.set(j, turned_x);
        high_out.set(j, turned_y);
      } else {
        (p < kVector ? low_out : high_out).set(p % kVector, turned_x);
        (q < kVector ? low_out : high_out).set(q % kVector, turned_y);
      }
    }
    store(to + first, low_out);
    store(to + second, high_out);
  }
};

/// A vector body over what does not turn, for when `to` is not `from`.
template <class T>
struct RotaryRest {
  Rotary a;

  std::int64_t count() const { return a.from == a.to ? 0 : a.batch * a.positions * a.heads * (a.dim - 2 * a.half); }

  MESHARD_BODY void operator()(std::int64_t i) const {
    const std::int64_t rest = a.dim - 2 * a.half;
    const std::int64_t at = i / rest * a.dim + 2 * a.half + i % rest;
    static_cast<T*>(a.to)[at] = static_cast<const T*>(a.from)[at];
  }
};

// ---- SwiGLU

MESHARD_BODY float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

template <class T, int kVector>
struct SwigluForwardVectors {
  SwigluForward a;

  std::int64_t count() const { return a.rows * (a.width / kVector); }

  MESHARD_BODY void operator()(std::int64_t i) const {
    const std::int64_t vectors = a.width / kVector, row = i / vectors, column = (i - row * vectors) * kVector;
    const auto g = load<kVector>(static_cast<const T*>(a.gate) + row * a.stride + column);
    const auto u = load<kVector>(static_cast<const T*>(a.up) + row * a.stride + column);
    Vector<T, kVector> product;
    for (int j = 0; j < kVector; ++j) product.set(j, rounded<T>(g[j] * sigmoid(g[j])) * u[j]);
    store(static_cast<T*>(a.product) + row * a.width + column, product);
  }
};

template <class T, int kVector>
struct SwigluBackwardVectors {
  SwigluBackward a;

  std::int64_t count() const { return a.rows * (a.width / kVector); }

  MESHARD_BODY void operator()(std::int64_t i) const {
    const std::int64_t vectors = a.width / kVector, row = i / vectors, column = (i - row * vectors) * kVector;
    const std::int64_t at = row * a.stride + column, out = row * a.width + column;
    const auto g = load<kVector>(static_cast<const T*>(a.gate) + at),
               u = load<kVector>(static_cast<const T*>(a.up) + at);
    const auto grad = load<kVector>(static_cast<const T*>(a.grad_product) + out);
    Vector<T, kVector> product, grad_gate, grad_up;
    for (int j = 0; j < kVector; ++j) {
      const float s = sigmoid(g[j]), silu = rounded<T>(g[j] * s);
      product.set(j, silu * u[j]);
      grad_gate.set(j, grad[j] * u[j] * s * (1.0f + g[j] * (1.0f - s)));
      grad_up.set(j, grad[j] * silu);
    }
    store(static_cast<T*>(a.product) + out, product);
    store(static_cast<T*>(a.grad_gate) + at, grad_gate);
    store(static_cast<T*>(a.grad_up) + at, grad_up);
  }
};

// ---- rows to experts and back

template <class T, int kVector>
struct GatherVectors {
  GatherRows a;

  std::int64_t count() const { return a.rows * (a.width / kVector); }

  MESHARD_BODY void operator()(std::int64_t i) const {
    const std::int64_t vectors = a.width / kVector, row = i / vectors, column = (i - row * vectors) * kVector;
    const std::int64_t source = a.index[row];
    Vector<T, kVector> v{};
    if (source >= 0) v = load<kVector>(static_cast<const T*>(a.from) + source * a.width + column);
    store(static_cast<T*>(a.to) + row * a.width + column, v);
  }
};

template <class T, int kVector>
struct SumVectors {
  SumRows a;

  std::int64_t count() const { return a.tokens * (a.width / kVector); }

  MESHARD_BODY void operator()(std::int64_t i) const {
    const std::int64_t vectors = a.width / kVector, token = i / vectors, column = (i - token * vectors) * kVector;
    float sums[kVector] = {};
    for (std::int64_t pair = token * a.top_k; pair < (token + 1) * a.top_k; ++pair) {
      const std::int64_t row = a.row_of[pair];
      if (row < 0) continue;
      const float weight = a.weights ? a.weights[pair] : 1.0f;
      const auto v = load<kVector>(static_cast<const T*>(a.from) + row * a.width + column);
      for (int j = 0; j < kVector; ++j) sums[j] += weight * v[j];
    }
    Vector<T, kVector> out;
    for (int j = 0; j < kVector; ++j) out.set(j, sums[j]);
    store(static_cast<T*>(a.to) + token * a.width + column, out);
  }
};

/// Row = a pair.
template <class T, int kVector>
struct SumBackwardRow {
  SumRowsBackward a;

  MESHARD_BODY float partial(std::int64_t pair, int lane, int lanes) const {
    const std::int64_t row = a.row_of[pair];
    if (row < 0) return 0.0f;
    const T* grad = static_cast<const T*>(a.grad) + pair / a.top_k * a.width;
    const T* from = static_cast<const T*>(a.from) + row * a.width;
    T* to = static_cast<T*>(a.grad_rows) + row * a.width;
    const float weight = a.weights[pair];
    float products = 0.0f;
    for_lane<kVector>(a.width, lane, lanes, [&](std::int64_t i) {
      const auto g = load<kVector>(grad + i), v = load<kVector>(from + i);
      Vector<T, kVector> out;
      for (int j = 0; j < kVector; ++j) {
        products += g[j] * v[j];
        out.set(j, weight * g[j]);
      }
      store(to + i, out);
    });
    return products;
  }

  MESHARD_BODY void finish(std::int64_t pair, int lane, int, float products) const {
    if (lane == 0) a.grad_weights[pair] = products;
  }
};

}  // namespace meshard::kernels
