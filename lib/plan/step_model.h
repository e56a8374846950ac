#pragma once
// One optimizer step as it would run on some hardware: what the runtime issues on each lane (sharding/DESIGN.md section
// 8), how long each operation takes, and what of communication computation waits for. All ranks are alike, so it is one
// rank's step, from the end of one optimizer to the end of the next.

#include <map>

#include "plan/compute_time.h"
#include "plan/lanes.h"
#include "plan/plan.h"

namespace meshard {

/// The way between the ranks of one axis. Collectives go around a ring, node after node.
struct AxisLink {
  int ranks = 1;
  LinkKind link = LinkKind::None;     ///< the slowest on the way
  double bytes_per_s = 0.0;           ///< that a rank sends around the ring
  double exchange_bytes_per_s = 0.0;  ///< that a rank sends in an all-to-all
  double latency_s = 0.0;             ///< of the whole way around: hops within nodes and between them
};

/// Local. Ranks fill node after node. Where the ring leaves a node, the links of all its members there carry it, but no
/// more than one of them moves within the node. ConfigError if the axis needs a link that the hardware does not have.
AxisLink axis_link(const MeshShape& mesh, Axis axis, const Hardware& hardware);

struct AxisTime {
  double busy_s = 0.0;     ///< of its collectives; more than one may run at a time
  double exposed_s = 0.0;  ///< that computation waits for them, or that they take of the core it runs on
};

struct StepPrediction {
  std::vector<StepOperation> operations;  ///< in the order of their issue
  std::vector<Span> spans;            ///< of each operation
  double seconds = 0.0;
  double compute_s = 0.0;         ///< of it: computation
  std::map<Axis, AxisTime> axes;  ///< that have collectives
  double tokens_per_s = 0.0;      ///< of all ranks
  double tflops = 0.0;            ///< of one rank, as metrics.jsonl counts them
  double mfu = 0.0;               ///< of the hardware's peak; of the achieved rate if it has none
};

/// Local. ConfigError as axis_link().
StepPrediction predict_step(const Plan& plan, const Hardware& hardware);

/// Local. What is computed in a step, and what of communication takes time of the computing core, s: no step is
/// shorter.
double least_step_seconds(const Plan& plan, const Hardware& hardware);

}  // namespace meshard
