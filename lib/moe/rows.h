#pragma once
// Moving rows of matrices by index, and weighted sums of rows: the memory-bound half of a mixture of experts. fp32 and
// bf16; sums in fp32, in a fixed order. `_cpu` is fused, `_aten` serves every other device (index tensors on x's
// device).

#include <ATen/core/Tensor.h>

namespace meshard {

/// Local. out[i] = x[index[i]], x [n, width], index [m] int64.
at::Tensor gather_rows_cpu(const at::Tensor& x, const at::Tensor& index);
at::Tensor gather_rows_aten(const at::Tensor& x, const at::Tensor& index);

/// Local. out[t] = sum over k, in this order, of weights[t,k] * rows[row_of[t,k]]; row_of [tokens, K] int64, entries
/// below 0 are left out; weights [tokens, K] fp32, or undefined: 1. Sums in fp32, result in rows' dtype.
at::Tensor sum_rows_cpu(const at::Tensor& rows, const at::Tensor& row_of, const at::Tensor& weights);
at::Tensor sum_rows_aten(const at::Tensor& rows, const at::Tensor& row_of, const at::Tensor& weights);

struct SumRowsBackward {
  at::Tensor grad_rows;     ///< as rows; row row_of[t,k] is weights[t,k] * grad[t]. Every row must occur once.
  at::Tensor grad_weights;  ///< [tokens, K] fp32: grad[t] . rows[row_of[t,k]], 0 where that is left out
};
/// Local. Gradients of the weighted sum.
SumRowsBackward sum_rows_backward_cpu(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& row_of,
                                      const at::Tensor& weights);
SumRowsBackward sum_rows_backward_aten(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& row_of,
                                       const at::Tensor& weights);

}  // namespace meshard
