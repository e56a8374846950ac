#pragma once
// Modules whose parameters are gathered and released together, and where they stand in a step.
//
//   resting -> begin_forward -> end_forward -> resting -> begin_backward -> end_backward -> resting
//
// A unit moves its own groups and says what is out of order; when it does so, and what goes on beside it, the runtime
// decides. The collectives of a unit are issued in the order of its groups, the same on every rank.

#include <memory>
#include <string>
#include <vector>

#include "module/module.h"
#include "sharding/param_group.h"

namespace meshard {

class Unit {
 public:
  using Groups = std::vector<std::unique_ptr<ParamGroup>>;

  /// What is kept of the unsharded parameters between a forward and its backward.
  enum class Keep {
    Nothing,   ///< released, and gathered again
    Gathered,  ///< one gather serves both
    Unneeded,  ///< released, and not gathered again: the backward does not read them
  };

  /// Local. Takes the groups over; parameters that came without values (from meta) await them. The modules must outlive
  /// this.
  Unit(std::string name, std::vector<Module*> modules, Keep keep, Groups groups);

  const std::string& name() const { return name_; }
  const std::vector<Module*>& modules() const { return modules_; }
  const Groups& groups() const { return groups_; }
  bool keeps_gathered() const { return keep_ == Keep::Gathered; }
  bool backward_reads_parameters() const { return keep_ != Keep::Unneeded; }
  bool is_resting() const { return state_ == State::Resting; }

  /// Collective over the axes that shard P. Issues the gathers that are not under way; does not wait.
  void start_gather();
  /// Local. Waits; the slots hold full parameters afterwards.
  void finish_gather();
  /// Local. Gives the unsharded parameters back.
  void release();

  /// Local. LogicError, naming the unit, if its parameters never got values or a forward of it has begun.
  void check_can_run() const;
  /// Local.
  void begin_forward() { state_ = State::Forward; }
  void end_forward() { state_ = State::Resting; }
  /// Local. Opens the sinks that gradients are written into. LogicError within a forward.
  void begin_backward();
  /// Local. Moves what gradients there are into the flat buffers, zeros for the rest, and releases the parameters: the
  /// gradients are ready to be reduced. A unit that nothing flowed through may begin here.
  void end_backward();
  /// Local. LogicError unless begin_backward() was called.
  void check_in_backward() const;
  bool is_in_backward() const { return state_ == State::Backward; }

  /// Collective over the axes that G shards. Issues the reductions; does not wait.
  void start_reduce();
  /// Local. Waits, and adds into the pending gradients.
  void finish_reduce();
  /// Local. A reduction of this unit is on the way, and not waited for.
  bool is_reducing() const;

  /// Collective over the axes that are Partial in G. The rest of the reduction, by which pending gradients become final
  /// ones: issues the first axis; waits for that and issues the next, if there is one; waits for all that is left.
  void start_finalize();
  void continue_finalize();
  void finish_finalize();
  bool copies_to_finalize() const;  ///< of its gradients, while that is under way

  /// Collective over the axes where P holds more than O. Main weights -> model weights; does not wait (the next use
  /// does). From here on the parameters have values.
  void refresh();
  /// Local. Empties pending and final gradients.
  void zero_grad();

 private:
  enum class State { Resting, Forward, Backward };

  std::string name_;
  std::vector<Module*> modules_;
  Keep keep_;
  Groups groups_;
  State state_ = State::Resting;
  bool has_values_;
};

}  // namespace meshard
