#pragma once
// The arithmetic of reductions over MPI: one slice from every rank, folded in rank order.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace meshard {

/// Local. out[i] = inputs[0][i] op inputs[1][i] op ..., in this order, over `count` elements of `dtype`. fp32 and bf16
/// in fp32, rounded to nearest even once, at the end; fp64 and integers in their own type (integers wrap). Average
/// divides the sum by the number of inputs before rounding; floating dtypes only. Max of a NaN is NaN. `out` may be one
/// of the inputs, and may overlap none of them otherwise.
void reduce_in_order(void* out, std::span<const void* const> inputs, std::int64_t count, at::ScalarType dtype,
                     ReduceOp op);

}  // namespace meshard
