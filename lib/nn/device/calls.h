#pragma once
// From a call (nn/device/kernels.h) to the bodies that do it (nn/device/kernel_rows.h): element, vector width, and how
// rows are spread. The same for CUDA and for the tests on the host: a Runner says only how bodies are run.
//   rows(body, rows, lanes, stream)                  a row body over all rows
//   grouped(body, rows, groups, size, lanes, stream) the same, groups of successive rows having column sums of their
//   own columns(partials, rows, size, to, stream)        sums of columns vectors(body, stream) a vector body over
//   body.count() vectors architecture()                                   of the device, as in Table
// Each returns null, or what is wrong.

#include <algorithm>

#include "nn/device/kernel_rows.h"

namespace meshard::kernels {

/// Threads that share a row of `size` elements: a warp, or eight of them.
inline int lanes_of(std::int64_t size) {
  return size <= 512 ? 32 : 256;
}

constexpr int kBlock = 256;  ///< threads; rows lie side by side in a block if fewer share one

inline std::int64_t groups_of(std::int64_t rows, std::int64_t size) {
  return std::min<std::int64_t>(rows, 512 * (kBlock / lanes_of(size)));
}

/// Whether rows of this many elements, at these places, can be read 16 bytes at a time.
template <class T, class... Pointers>
bool fits_vectors(std::int64_t size, const Pointers*... pointers) {
  auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  return size % kWidest<T> == 0 && (aligned(pointers) && ...);
}

/// run.operator()<T, kVector>() for the element, with whole vectors if fits.operator()<T>().
template <class Fits, class Run>
const char* with_vectors(Element element, Fits fits, Run run) {
  if (element == Element::Float) {
    return fits.template operator()<float>() ? run.template operator()<float, kWidest<float>>()
                                             : run.template operator()<float, 1>();
  }
  return fits.template operator()<BFloat16>() ? run.template operator()<BFloat16, kWidest<BFloat16>>()
                                              : run.template operator()<BFloat16, 1>();
}

template <class Runner>
struct Calls {
  static const char* rms_norm_forward(Element element, const RmsNormForward& a, Stream stream) {
    auto fits = [&]<class T>() { return fits_vectors<T>(a.size, a.x, a.addend, a.weight, a.sum, a.normed); };
    return with_vectors(element, fits, [&]<class T, int kVector>() {
      return Runner::rows(RmsNormForwardRow<T, kVector>{a}, a.rows, lanes_of(a.size), stream);
    });
  }

  static const char* rms_norm_backward(Element element, const RmsNormBackward& a, Stream stream) {
    auto fits = [&]<class T>() {
      return fits_vectors<T>(a.size, a.grad_normed, a.grad_sum, a.sum, a.weight, a.grad_x, a.partials);
    };
    const auto groups = groups_of(a.rows, a.size);
    auto* problem = with_vectors(element, fits, [&]<class T, int kVector>() {
      return Runner::grouped(RmsNormBackwardRow<T, kVector>{a}, a.rows, groups, a.size, lanes_of(a.size), stream);
    });
    return problem ? problem : Runner::columns(a.partials, groups, a.size, a.grad_weight, stream);
  }

  static const char* rotary(Element element, const Rotary& a, Stream stream) {
    auto fits = [&]<class T>() {
      return fits_vectors<T>(a.half, a.from, a.to, a.cos, a.sin) && a.dim % kWidest<T> == 0;
    };
    auto* problem = with_vectors(
        element, fits, [&]<class T, int kVector>() { return Runner::vectors(RotaryPairs<T, kVector>{a}, stream); });
    if (problem) return problem;
    return element == Element::Float ? Runner::vectors(RotaryRest<float>{a}, stream)
                                     : Runner::vectors(RotaryRest<BFloat16>{a}, stream);
  }

  static const char* swiglu_forward(Element element, const SwigluForward& a, Stream stream) {
    auto fits = [&]<class T>() {
      return fits_vectors<T>(a.width, a.gate, a.up, a.product) && a.stride % kWidest<T> == 0;
    };
    return with_vectors(element, fits, [&]<class T, int kVector>() {
      return Runner::vectors(SwigluForwardVectors<T, kVector>{a}, stream);
    });
  }

  static const char* swiglu_backward(Element element, const SwigluBackward& a, Stream stream) {
    auto fits = [&]<class T>() {
      return fits_vectors<T>(a.width, a.gate, a.up, a.product, a.grad_product, a.grad_gate, a.grad_up) &&
             a.stride % kWidest<T> == 0;
    };
    return with_vectors(element, fits, [&]<class T, int kVector>() {
      return Runner::vectors(SwigluBackwardVectors<T, kVector>{a}, stream);
    });
  }

  static const char* gather_rows(Element element, const GatherRows& a, Stream stream) {
    auto fits = [&]<class T>() { return fits_vectors<T>(a.width, a.from, a.to); };
    return with_vectors(element, fits,
                        [&]<class T, int kVector>() { return Runner::vectors(GatherVectors<T, kVector>{a}, stream); });
  }

  static const char* sum_rows(Element element, const SumRows& a, Stream stream) {
    auto fits = [&]<class T>() { return fits_vectors<T>(a.width, a.from, a.to); };
    return with_vectors(element, fits,
                        [&]<class T, int kVector>() { return Runner::vectors(SumVectors<T, kVector>{a}, stream); });
  }

  static const char* sum_rows_backward(Element element, const SumRowsBackward& a, Stream stream) {
    auto fits = [&]<class T>() { return fits_vectors<T>(a.width, a.grad, a.from, a.grad_rows); };
    return with_vectors(element, fits, [&]<class T, int kVector>() {
      return Runner::rows(SumBackwardRow<T, kVector>{a}, a.tokens * a.top_k, lanes_of(a.width), stream);
    });
  }

  static constexpr Table table(bool on_host) {
    return {on_host,         &Runner::architecture, &rms_norm_forward, &rms_norm_backward, &rotary,
            &swiglu_forward, &swiglu_backward,      &gather_rows,      &sum_rows,          &sum_rows_backward};
  }
};

}  // namespace meshard::kernels
