#pragma once
// The storage of one parameter group and what happens to it in a step: gather, release, collect gradients, reduce,
// finalise, refresh. Knows nothing of order or prefetch: that is the runtime's.

#include <memory>
#include <string>
#include <vector>

#include "sharding/dbuffer.h"
#include "sharding/flat_shard.h"
#include "sharding/storage.h"
#include "sharding/unit_plan.h"

namespace meshard {

/// The `precision` keys. Dtypes are fp32 or bf16.
struct Precision {
  at::ScalarType param = at::kFloat;       ///< of forward and backward, and of gathers
  at::ScalarType main_param = at::kFloat;  ///< of the weights that the optimizer updates
  at::ScalarType main_grad = at::kFloat;   ///< of accumulated gradients
  at::ScalarType reduce = at::kFloat;      ///< of gradients on the wire
};

/// A parameter's elements that this rank holds of the main weights.
struct OwnedRange {
  const GroupParameter& parameter;
  IndexRange elements;  ///< of this rank's tensor, flattened; Slot::part knows where they lie in the whole one
  at::Tensor values;    ///< 1-D view into the main weights
};

class ParamGroup {
 public:
  /// Local. Allocates the sharded storage; copies this rank's slices of real parameters, leaves meta ones
  /// uninitialised. Does not touch the slots yet.
  ParamGroup(GroupPlan plan, std::string unit, const GroupPlacement& placement, CommAxes axes,
             const Precision& precision, double grad_divisor, at::Device device, BufferPool& pool);

  /// Local. From here on the slots belong to this group: their tensors are its leaves, or undefined while not gathered.
  void install();

  // -- parameters
  /// Collective over the axis that shards P, if there is one and no gather is under way. Does not wait.
  void start_gather();
  /// Local. Waits; the slots hold full parameters afterwards.
  void finish_gather();
  /// Local. Gives the unsharded storage back; the slots become undefined. Nothing happens where P is replicated.
  void release();
  bool is_gathered() const { return unsharded_ == Unsharded::Gathered; }

  // -- gradients
  /// Local. Gives every slot a sink in the flat gradient buffer.
  void open_sinks();
  /// Local. Moves the gradients that autograd left on the leaves into the flat buffer, zeros where there is none.
  void collect_gradients();
  /// Collective over the axis that G shards, if any. Does not wait.
  void start_reduce();
  bool is_reducing() const { return reduce_.pending(); }
  /// Local. Waits and adds into `pending`.
  void finish_reduce();
  /// Collective over the first axis that is Partial in G, inner first. Issues the rest of the reduction of `pending`;
  /// does not wait. Nothing may be added to `pending` until finish_finalize().
  void start_finalize();
  /// Collective over the next such axis, if there is one: waits for what is under way and issues that. Does not wait
  /// for it.
  void continue_finalize();
  /// Collective over the axes that are left. Waits, adds `pending` into `final`, empties it.
  void finish_finalize();
  /// The rest of the reduction needs a copy of `pending` while it is under way: the dtype on the wire is another one.
  bool copies_to_finalize() const;
  /// Local. Empties both; the next backward starts afresh.
  void zero_grad();
  bool has_pending() const { return pending_filled_; }
  /// Gradients that wait for the step's last backward, placement G; undefined if there are none.
  const at::Tensor& pending_grad() const { return pending_filled_ ? pending_ : undefined_; }

  // -- weights
  /// Collective over the axes where P holds more than O. Main weights -> model weights; does not wait (the next use
  /// does).
  void refresh();
  /// Local. Calls `visit` for every parameter of which this rank holds elements.
  void for_each_owned(const std::function<void(const OwnedRange&)>& visit);
  /// Local. What the optimizer works on.
  FlatShard flat_shard() const;

  const GroupPlan& plan() const { return plan_; }
  const DBuffer& main_weights() const { return main_; }
  /// Undefined before the first backward and for frozen groups.
  const at::Tensor& final_grad() const { return final_filled_ ? final_ : undefined_; }
  /// Bytes that this rank keeps at rest for model weights that do not share the main weights' storage.
  std::int64_t model_weight_bytes() const { return shares_main_ ? 0 : model_.local().nbytes(); }
  /// True on exactly one rank for each part of the main weights: sums over ranks count only these.
  bool counts_in_sums() const;
  bool from_meta() const { return from_meta_; }
  /// Its unit, dtype and whether it is frozen, unique in the model: "model.layers.0[fp32]", "root[bf16 frozen]".
  const std::string& name() const { return name_; }

 private:
  void make_leaves();
  void copy_real_values(const std::vector<at::Tensor>& originals);
  DBuffer as_buffer(at::Tensor local, const Placements& placements) const;
  at::Tensor empty_flat(const Placements& placements, at::ScalarType dtype) const;
  bool reduce_next_axis();
  std::optional<DBuffer> reduction_target(const Placements& to);
  CallInfo call() const { return {unit_, false}; }

  GroupPlan plan_;
  std::string unit_, name_;
  GroupPlacement placement_;
  CommAxes axes_;
  Precision precision_;
  double grad_divisor_;
  BufferPool& pool_;
  std::shared_ptr<const GlobalLayout> layout_;
  bool from_meta_ = true;
  bool grads_shard_ = false;  // G has a Flat axis: every backward reduces

  DBuffer main_;   // placement O, main_param
  DBuffer model_;  // placement P, param
  bool shares_main_ = false;
  DBuffer full_;  // all Replicate, param; the same as model_ where P is replicated
  std::vector<at::Tensor> leaves_;
  at::Tensor block_;  // memory under full_ while gathered
  Work gather_, refresh_;
  // Replicated parameters are always Gathered.
  enum class Unsharded { Released, UnderWay, Gathered } unsharded_ = Unsharded::Released;

  at::Tensor partial_, partial_block_;  // one backward's full gradients, where G shards
  at::Tensor reduced_;                  // a reduction's result on its way into pending_
  Work reduce_;
  DBuffer rest_;  // pending gradients on their way from G to O
  Work rest_work_;
  // Where an all-reduce turns one into the other they take turns in one buffer.
  at::Tensor pending_, final_, undefined_;
  bool pending_filled_ = false, final_filled_ = false;
};

}  // namespace meshard
