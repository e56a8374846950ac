#pragma once
// Vectors of eight floats for the CPU kernels: GCC and Clang vector extensions, so one source serves every target.
// Loads and stores convert bf16 to fp32 and back (round to nearest even); all arithmetic is fp32.

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <cstring>
#include <limits>

namespace meshard::simd {

constexpr std::int64_t kLanes = 8;

using Floats = float __attribute__((vector_size(32)));
using Ints = std::int32_t __attribute__((vector_size(32)));
using Words = std::uint32_t __attribute__((vector_size(32)));
using Halves = std::uint16_t __attribute__((vector_size(16)));

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline Floats splat(float x) {
  return Floats{x, x, x, x, x, x, x, x};
}

inline Floats load(const float* from) {
  Floats v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

inline Floats load(const c10::BFloat16* from) {
  Halves v;
  std::memcpy(&v, from, sizeof(v));
  return bits_as<Floats>(__builtin_convertvector(v, Words) << 16);
}

inline void store(float* to, Floats v) {
  std::memcpy(to, &v, sizeof(v));
}

inline void store(c10::BFloat16* to, Floats v) {
  auto bits = bits_as<Words>(v);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words nan = bits_as<Words>(v != v);
  auto halves = __builtin_convertvector((rounded & ~nan) | (nan & 0x7fc0u), Halves);
  std::memcpy(to, &halves, sizeof(halves));
}

/// The first `count` (1 to 8) elements; the other lanes are 0.
template <class T>
inline Floats load(const T* from, std::int64_t count) {
  if (count == kLanes) return load(from);
  T padded[kLanes] = {};
  std::memcpy(padded, from, count * sizeof(T));
  return load(padded);
}

template <class T>
inline void store(T* to, Floats v, std::int64_t count) {
  if (count == kLanes) return store(to, v);
  T padded[kLanes];
  store(padded, v);
  std::memcpy(to, padded, count * sizeof(T));
}

/// What v becomes when it is stored as T and read back.
inline Floats rounded_to(float, Floats v) {
  return v;
}
inline Floats rounded_to(c10::BFloat16, Floats v) {
  c10::BFloat16 stored[kLanes];
  store(stored, v);
  return load(stored);
}

/// Calls body(i, count) for i = 0, 8, 16.. below n; count is the literal 8 but for the tail, so that the branch in
/// load() and store() is gone from the hot loop.
template <class Body>
[[gnu::always_inline]] inline void for_each(std::int64_t n, Body body) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, n - i);
}

/// Lanes below `count` of v, `other` in the rest.
inline Floats keep_first(Floats v, std::int64_t count, float other) {
  const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return lane < static_cast<std::int32_t>(count) ? v : splat(other);
}

inline float sum(Floats v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

inline Floats max(Floats a, Floats b) {
  return a > b ? a : b;
}

inline float max(Floats v) {
  float result = v[0];
  for (int i = 1; i < kLanes; ++i) result = v[i] > result ? v[i] : result;
  return result;
}

/// e^x to 2 ulp; x is clamped to [-87, 88], NaN stays NaN. Cephes' expf: x = n ln 2 + r, polynomial in r, times 2^n.
inline Floats exp(Floats x) {
  constexpr float kRoundToInt = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  x = x < splat(-87.0f) ? splat(-87.0f) : x;
  x = x > splat(88.0f) ? splat(88.0f) : x;
  Floats n = x * 1.44269504088896341f + kRoundToInt;
  const Ints power = bits_as<Ints>(n) << 23;
  n -= kRoundToInt;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r * r + r) + 1.0f;
  return bits_as<Floats>(bits_as<Ints>(p) + power);
}

}  // namespace meshard::simd
