#pragma once
// Kernels of what a decoder does beside matrix products and attention: raw pointers, fp32 or bf16 elements, arithmetic
// in fp32. Written for CUDA (kernels.cu); the row bodies that they run are plain C++ (kernel_rows.h). No atomics: a
// result depends on nothing but the arguments, neither on the device nor on the number of its processors.
//
// No header of LibTorch here, so that nvcc compiles the one source in seconds. Whoever has tensors calls
// nn/device/launch.h, which checks them.

#include <cstdint>

struct CUstream_st;

namespace meshard::kernels {

using Stream = CUstream_st*;  ///< a cudaStream_t; null: the default one

enum class Element { Float, BFloat16 };

/// normed = (x + addend) / rms(x + addend) * weight of each row; the unit value is rounded to the element before it is
/// weighted. Without addend (null) `sum` is null too.
struct RmsNormForward {
  const void *x, *addend, *weight;
  void *sum, *normed;
  float* rstd;  ///< [rows]
  std::int64_t rows, size;
  float eps;
};

/// grad_x = grad_sum + rstd * (w g - xhat mean(w g xhat)), grad_weight = sum over rows of g xhat. grad_sum may be null.
struct RmsNormBackward {
  const void *grad_normed, *grad_sum, *sum, *weight;
  const float* rstd;
  void* grad_x;
  float* partials;     ///< room for groups_of(rows, size) * size (nn/device/calls.h)
  float* grad_weight;  ///< [size]
  std::int64_t rows, size;
};

/// Which elements of a head turn together: i and i + half, or 2 i and 2 i + 1.
enum class Pairing { Halves, Neighbours };

/// x [batch, positions, heads, dim] turned by cos and sin [positions, half] of fp32; elements from 2 * half on stay.
struct Rotary {
  const void* from;
  void* to;  ///< may be `from`
  const float *cos, *sin;
  std::int64_t batch, positions, heads, dim, half;
  Pairing pairing;
  float direction;  ///< -1 turns back: the gradient
};

/// product = silu(gate) * up, rows of `width`; the rows of gate and of up are `stride` elements apart.
struct SwigluForward {
  const void *gate, *up;
  void* product;
  std::int64_t rows, width, stride;
};

/// The product again and the gradients of gate and up, whose rows are as far apart as those of gate and up.
struct SwigluBackward {
  const void *grad_product, *gate, *up;
  void* product;  ///< may be grad_product
  void *grad_gate, *grad_up;
  std::int64_t rows, width, stride;
};

/// to[i] = from[index[i]], zeros where index[i] is negative: padding between groups of rows.
struct GatherRows {
  const void* from;
  const std::int64_t* index;
  void* to;
  std::int64_t rows, width;
};

/// to[t] = sum over k of weights[t,k] * from[row_of[t,k]], negative entries left out; weights may be null: 1.
struct SumRows {
  const void* from;
  const std::int64_t* row_of;
  const float* weights;
  void* to;
  std::int64_t tokens, top_k, width;
};

/// grad_rows[row_of[t,k]] = weights[t,k] * grad[t], grad_weights[t,k] = grad[t] . from[row_of[t,k]], 0 if left out.
struct SumRowsBackward {
  const void *grad, *from;
  const std::int64_t* row_of;
  const float* weights;
  void* grad_rows;
  float* grad_weights;
  std::int64_t tokens, top_k, width;
};

/// One implementation of all of them. Each call only queues work on the stream; returns null, or what CUDA says is
/// wrong with the launch.
struct Table {
  bool on_host;           ///< takes host memory and ignores the stream: the row bodies under test
  int (*architecture)();  ///< of the current device: 90 for Hopper
  const char* (*rms_norm_forward)(Element, const RmsNormForward&, Stream);
  const char* (*rms_norm_backward)(Element, const RmsNormBackward&, Stream);
  const char* (*rotary)(Element, const Rotary&, Stream);
  const char* (*swiglu_forward)(Element, const SwigluForward&, Stream);
  const char* (*swiglu_backward)(Element, const SwigluBackward&, Stream);
  const char* (*gather_rows)(Element, const GatherRows&, Stream);
  const char* (*sum_rows)(Element, const SumRows&, Stream);
  const char* (*sum_rows_backward)(Element, const SumRowsBackward&, Stream);
};

/// Local. The CUDA kernels, or null in a build without CUDA.
const Table* linked_table();

}  // namespace meshard::kernels
