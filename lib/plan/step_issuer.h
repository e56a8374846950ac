#pragma once
// What one rank enqueues on its lanes: computation, collectives and waits, in the order in which a host would.

#include <map>
#include <vector>

#include "plan/hardware.h"
#include "plan/lanes.h"
#include "plan/step_model.h"

namespace meshard {

class StepIssuer {
 public:
  using Ids = std::vector<OperationId>;

  /// Local. `hardware` must outlive this. ConfigError as axis_link().
  StepIssuer(const MeshShape& mesh, const Hardware& hardware);

  /// Local. Computes once all that was waited for has come. Each collective starts behind what was last computed, and
  /// behind `after`; bytes are those of the whole buffer.
  void compute(const char* what, int unit, double seconds);
  OperationId all_gather(int unit, Lane lane, Axis axis, std::int64_t full_bytes, const Ids& after);
  OperationId reduce_scatter(int unit, Lane lane, Axis axis, std::int64_t full_bytes, const Ids& after);
  OperationId all_reduce(int unit, Lane lane, Axis axis, std::int64_t full_bytes, const Ids& after);
  /// Local. Between expert ranks; of rows, `bytes` is what leaves this rank.
  OperationId all_to_all(int unit, std::int64_t full_bytes);
  OperationId all_to_all_v(int unit, std::int64_t bytes);
  /// Local. A number that all ranks sum up.
  OperationId control();

  /// Local. What is computed next needs these; the list is empty then. Over MPI on CPUs it is in the wait that a core
  /// copies and folds.
  void wait(Ids& operations);

  /// Local. All that was issued.
  std::vector<StepOperation> take() { return std::move(operations_); }

 private:
  OperationId issue(StepOperation operation, const Ids& after);
  /// `reduced`: the part of the bytes that is folded where it comes in.
  OperationId collective(const char* what, int unit, Lane lane, Axis axis, std::int64_t bytes, double reduced,
                         Ids after);
  int ranks(Axis axis) const { return links_.at(axis).ranks; }

  const Hardware& hardware_;
  std::map<Axis, AxisLink> links_;
  std::vector<StepOperation> operations_;
  std::map<OperationId, double> core_seconds_;  ///< that a wait takes
  OperationId last_compute_ = kNothing;
  Ids waited_;
};

}  // namespace meshard
