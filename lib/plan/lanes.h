#pragma once
// The lanes of one rank as a simulation: what is enqueued on a lane runs in order, each operation once its lane is free
// and all that it waits for has ended. Operations on the same link at the same time share it.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/timeline/lane.h"
#include "mesh/mesh_shape.h"

namespace meshard {

/// What an operation is held up by while it moves its bytes.
enum class LinkKind { None, Node, Network };

/// Index of an operation in the order of their issue; kNothing: of none.
using OperationId = int;
inline constexpr OperationId kNothing = -1;

struct StepOperation {
  const char* what = "";  ///< "forward", "all_gather", ...
  int unit = -1;          ///< of the plan; -1: of none
  Lane lane = Lane::Compute;
  std::optional<Axis> axis = {};   ///< of a collective, and of what one takes of the compute lane
  double fixed_s = 0.0;            ///< computation, or latency
  double transfer_s = 0.0;         ///< of its bytes, with the link to itself
  LinkKind link = LinkKind::None;  ///< that transfer_s is of
  std::int64_t bytes = 0;          ///< that a rank sends
  std::array<OperationId, 4> after = {kNothing, kNothing, kNothing, kNothing};  ///< issued before it
};

struct Span {
  double begin = 0.0, end = 0.0;  ///< s from the begin of the step
};

/// Local. When each operation runs. Of n operations that move bytes over one link at once, each moves 1/n as fast as
/// alone. LogicError for an operation that waits for a later one.
std::vector<Span> run_lanes(const std::vector<StepOperation>& operations);

}  // namespace meshard
