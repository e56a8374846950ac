#pragma once
// Rotary position embedding (Su et al. 2021) in Hugging Face's half layout: of the first `rotary_dim` elements of a
// head, element i of the first half and element i of the second half are the pair that is turned by position *
// theta^(-2i/rotary_dim).

#include <ATen/core/Tensor.h>

#include "module/module.h"

namespace meshard {

/// The tables as a module: non-persistent fp32 buffers "cos" and "sin" [max_positions, rotary_dim / 2].
class RotaryTable : public Module {
 public:
  /// Local. Real values on `device`, or on the CPU if `device` is meta: a table is never a thing to materialise.
  RotaryTable(std::int64_t max_positions, std::int64_t rotary_dim, double theta, at::Device device);

  struct Slice {
    at::Tensor cos;  ///< [positions, rotary_dim / 2], contiguous fp32
    at::Tensor sin;
  };
  /// Local. Positions 0 to positions - 1, on `device` (copied there once). ArgumentError beyond max_positions.
  Slice first(std::int64_t positions, at::Device device) const;

 protected:
  at::Tensor forward(const at::Tensor& input) override;

 private:
  at::Tensor cos_;
  at::Tensor sin_;
  mutable Slice elsewhere_;  // copies on the device that first() was last asked for
};

/// Local. Turns x [batch, positions, heads, head_dim] by the table's angles; elements beyond 2 * cos.size(1) of each
/// head stay. Differentiable, in fp32, result in x's dtype. The reference for the fused CPU kernel.
at::Tensor rotate(const at::Tensor& x, const RotaryTable::Slice& table);

}  // namespace meshard
