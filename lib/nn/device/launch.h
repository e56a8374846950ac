#pragma once
// The kernels of nn/device/kernels.h on tensors: checks them, makes the results, queues the kernel on the current
// stream of the tensors' device. The `_aten` twins of nn and moe come here first. Tensors are contiguous unless said
// otherwise, fp32 or bf16 alike in one call; ShapeError, naming the operation, for others. CommError if CUDA refuses a
// launch.

#include <initializer_list>
#include <utility>

#include "nn/device/kernels.h"
#include "nn/rms_norm.h"
#include "nn/swiglu.h"

namespace meshard {

/// Local. Whether a tensor has kernels: on CUDA in a build with CUDA; on the CPU while a table for the host is used.
bool has_kernels(const at::Tensor& tensor);

/// Local. Whether ATen's grouped products of bf16 (CUTLASS, offsets on the device) are there for this tensor: on sm_90,
/// if rows of `widths` elements are of whole 16 bytes. On others ATen would read the offsets and loop.
bool has_grouped_products(const at::Tensor& tensor, std::initializer_list<std::int64_t> widths);

/// For tests: the kernels that are used while it lives, for tensors on the CPU on the path of devices.
class KernelScope {
 public:
  explicit KernelScope(const kernels::Table& table);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  const kernels::Table* before_;
};

/// Local. As rms_norm_forward_aten() and rms_norm_backward_aten().
RmsNormForward rms_norm_forward_device(const at::Tensor& x, const at::Tensor& addend, const at::Tensor& weight,
                                       double eps);
RmsNormBackward rms_norm_backward_device(const at::Tensor& grad_normed, const at::Tensor& grad_sum,
                                         const at::Tensor& sum, const at::Tensor& rstd, const at::Tensor& weight);

/// Local. `to` becomes `from` [batch, positions, heads, dim] turned by cos and sin [positions, half], fp32; they may be
/// one tensor. direction 1, or -1: turned back.
void rotate_device(const at::Tensor& from, const at::Tensor& to, const at::Tensor& cos, const at::Tensor& sin,
                   kernels::Pairing pairing, float direction);

/// Local. As swiglu_forward_aten() and its kin; product and grad_up of a backward are new tensors.
at::Tensor swiglu_forward_device(const at::Tensor& gate, const at::Tensor& up);
SwigluBackward swiglu_backward_device(const at::Tensor& grad_product, const at::Tensor& gate, const at::Tensor& up);
at::Tensor swiglu_rows_forward_device(const at::Tensor& gate_up);
SwigluRowsBackward swiglu_rows_backward_device(const at::Tensor& grad_product, const at::Tensor& gate_up);

/// Local. out[i] = x[index[i]], zeros where index[i] is negative.
at::Tensor gather_rows_device(const at::Tensor& x, const at::Tensor& index);

/// Local. As sum_rows_aten() and sum_rows_backward_aten() (moe/rows.h): grad_rows and grad_weights.
at::Tensor sum_rows_device(const at::Tensor& rows, const at::Tensor& row_of, const at::Tensor& weights);
std::pair<at::Tensor, at::Tensor> sum_rows_backward_device(const at::Tensor& grad, const at::Tensor& rows,
                                                           const at::Tensor& row_of, const at::Tensor& weights);

}  // namespace meshard
