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
  std::vector<double> riders;  ///< of this rank

  bool finite() const { return nonfinite.empty(); }
};

/// Local. The sum of squares of a 1-D tensor of any floating dtype and size: fp64, 0-d, on its device. Taken block by
/// block in a fixed order: no copy of the whole, and the same bits in every repeat, with any number of threads. On the
/// CPU all of it is fp64; on a device the squares of a block of 512 are summed in fp32.
at::Tensor sum_of_squares(const at::Tensor& flat);

/// Collective over world. Squares are summed in fp64, once per parameter over the axes that shard it, never over
/// replicas. Every rank gets the same bits, ranks that own nothing included. The host waits for the device once, and
/// reads with the squares whatever else the step has to tell: `riders`, 1-D, fp64, on the world's device, or undefined.
GradientNorm gradient_norm(const ShardingRuntime& runtime, const at::Tensor& riders = {});

/// Local. max_norm / (norm + 1e-6) if that is below 1, else 1; max_norm 0 turns clipping off.
double clip_scale(const GradientNorm& norm, double max_norm);

/// Local. Scales every final gradient by clip_scale(norm, max_norm).
void clip_gradients(const ShardingRuntime& runtime, const GradientNorm& norm, double max_norm);

}  // namespace meshard
