#pragma once
// The global gradient norm, independent of the mesh, and clipping by it. DESIGN.md section 10.

#include <string>
#include <vector>

#include "sharding/runtime.h"

namespace meshard {

struct GradientNorm {
  double value = 0.0;                ///< over all parameters of all ranks
  std::vector<double> unit_squares;  ///< sum of squares per unit, in unit order: the norms of layers
  /// What is not finite anywhere, the same list on every rank, the first few of each: weights, which then spoil every
  /// gradient ("weight FQN"), and gradients ("gradient of FQN").
  std::vector<std::string> nonfinite;

  bool finite() const { return nonfinite.empty(); }
};

/// Local. The sum of squares of a 1-D tensor of any floating dtype and size: fp64, 0-d, on its device. Taken block by
/// block in a fixed order: no copy of the whole, and the same bits in every repeat, with any number of threads.
at::Tensor sum_of_squares(const at::Tensor& flat);

/// Collective over world. Squares are summed in fp64, once per parameter over the axes that shard it, never over
/// replicas. Every rank gets the same bits, ranks that own nothing included.
GradientNorm gradient_norm(const ShardingRuntime& runtime);

/// Local. Scales every final gradient by max_norm / (norm + 1e-6) if that is below 1; max_norm 0 turns it off.
void clip_gradients(const ShardingRuntime& runtime, const GradientNorm& norm, double max_norm);

}  // namespace meshard
