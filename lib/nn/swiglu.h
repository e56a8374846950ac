#pragma once
// silu(gate) * up, elementwise, and its backward, which recomputes the product instead of keeping it.
// `_cpu` is fused, `_aten` serves every other device; fp32 and bf16, all tensors contiguous and of one shape. As in
// Hugging Face, silu is rounded to the tensor's dtype before the product.

#include <ATen/core/Tensor.h>

namespace meshard {

/// Local. silu(gate) * up.
at::Tensor swiglu_forward_cpu(const at::Tensor& gate, const at::Tensor& up);
at::Tensor swiglu_forward_aten(const at::Tensor& gate, const at::Tensor& up);

struct SwigluBackward {
  at::Tensor product;  ///< silu(gate) * up again
  at::Tensor grad_gate;
  at::Tensor grad_up;  ///< CPU: in the storage of grad_product
};

/// Local. `grad_product` may be overwritten: the caller must own it alone.
SwigluBackward swiglu_backward_cpu(const at::Tensor& grad_product, const at::Tensor& gate, const at::Tensor& up);
SwigluBackward swiglu_backward_aten(const at::Tensor& grad_product, const at::Tensor& gate, const at::Tensor& up);

/// Local. The same for rows that hold gate, then up, side by side: [n, 2F] -> [n, F].
at::Tensor swiglu_rows_forward_cpu(const at::Tensor& gate_up);
at::Tensor swiglu_rows_forward_aten(const at::Tensor& gate_up);

struct SwigluRowsBackward {
  at::Tensor product;       ///< [n, F]; CPU: in the storage of grad_product
  at::Tensor grad_gate_up;  ///< [n, 2F]
};

/// Local. `grad_product` [n, F] may be overwritten: the caller must own it alone.
SwigluRowsBackward swiglu_rows_backward_cpu(const at::Tensor& grad_product, const at::Tensor& gate_up);
SwigluRowsBackward swiglu_rows_backward_aten(const at::Tensor& grad_product, const at::Tensor& gate_up);

}  // namespace meshard
