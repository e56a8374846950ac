#include "comm/mpi/reduce.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "base/error.h"

namespace meshard {

namespace {

/// Elements that are folded at a time: the accumulator stays in the first-level cache and the loops are plain enough to
/// be vectorised.
constexpr std::int64_t kBlock = 1024;

struct Bf16 {
  std::uint16_t bits;
};

template <typename T>
struct Accumulator {
  using type = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
};
template <>
struct Accumulator<Bf16> {
  using type = float;
};

inline float widen(Bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
template <typename T>
inline T widen(T x) {
  return x;
}

inline void narrow(float x, Bf16& out) {
  auto bits = std::bit_cast<std::uint32_t>(x);
  auto rounded = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  out.bits = x != x ? std::uint16_t{0x7fc0} : rounded;
}
template <typename A, typename T>
inline void narrow(A x, T& out) {
  out = static_cast<T>(x);
}

template <typename T>
inline T larger(T a, T b) {
  return a > b || a != a ? a : b;
}

template <typename T, typename A>
void fold_block(A* __restrict sum, const T* __restrict in, std::int64_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      for (std::int64_t i = 0; i < count; ++i) sum[i] += static_cast<A>(widen(in[i]));
      return;
    case ReduceOp::Max:
      // The comparison is of T, not of A: A is unsigned for integers.
      for (std::int64_t i = 0; i < count; ++i) {
        if constexpr (std::is_integral_v<T>) {
          sum[i] = static_cast<A>(larger(static_cast<T>(sum[i]), in[i]));
        } else {
          sum[i] = larger(sum[i], static_cast<A>(widen(in[i])));
        }
      }
      return;
  }
  throw LogicError("unknown reduction");
}

template <typename T>
void reduce_typed(T* out, std::span<const void* const> inputs, std::int64_t count, ReduceOp op) {
  using A = typename Accumulator<T>::type;
  alignas(64) A sum[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    auto length = std::min(kBlock, count - begin);
    auto first = static_cast<const T*>(inputs[0]) + begin;
    for (std::int64_t i = 0; i < length; ++i) sum[i] = static_cast<A>(widen(first[i]));
    for (auto input : inputs.subspan(1)) fold_block(sum, static_cast<const T*>(input) + begin, length, op);
    if constexpr (std::is_floating_point_v<A>) {
      if (op == ReduceOp::Average) {
        auto ranks = static_cast<A>(inputs.size());
        for (std::int64_t i = 0; i < length; ++i) sum[i] /= ranks;
      }
    }
    for (std::int64_t i = 0; i < length; ++i) narrow(sum[i], out[begin + i]);
  }
}

}  // namespace

void reduce_in_order(void* out, std::span<const void* const> inputs, std::int64_t count, at::ScalarType dtype,
                     ReduceOp op) {
  switch (dtype) {
    case at::kFloat:
      return reduce_typed(static_cast<float*>(out), inputs, count, op);
    case at::kBFloat16:
      return reduce_typed(static_cast<Bf16*>(out), inputs, count, op);
    case at::kDouble:
      return reduce_typed(static_cast<double*>(out), inputs, count, op);
    case at::kInt:
      return reduce_typed(static_cast<std::int32_t*>(out), inputs, count, op);
    case at::kLong:
      return reduce_typed(static_cast<std::int64_t*>(out), inputs, count, op);
    case at::kByte:
      return reduce_typed(static_cast<std::uint8_t*>(out), inputs, count, op);
    default:
      throw ShapeError("reduce_in_order: not a dtype that travels");
  }
}

}  // namespace meshard
