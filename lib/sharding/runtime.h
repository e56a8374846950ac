#pragma once
// The sharding runtime of one model: its units, the order in which they run, and what a training loop asks of them.
// DESIGN.md sections 4 to 9.
//
//   ShardingRuntime runtime(model, mesh);
//   for (auto* layer : model.layers()) runtime.fully_shard(*layer, options);
//   runtime.fully_shard({&model.norm(), &model.head()}, options);
//   runtime.fully_shard(model, options);                 // the root last, with what is left
//   fill main weights (for_each_owned), runtime.refresh_weights()
//   per microbatch, the last one without the scope:
//     { auto scope = runtime.no_sync(); model.loss(...).backward(); }
//   optimizer on runtime.flat_shards(), runtime.refresh_weights(), runtime.zero_grad()
//
// Gradients are AVERAGED over the ranks that shard or replicate a parameter. For the gradient of a sum over all ranks'
// tokens, divided by their number, a rank's loss is therefore ranks / tokens times its own sum.

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "sharding/unit.h"

namespace meshard {

struct ShardOptions {
  Strategy strategy = Strategy::Fsdp;
  Precision precision;
  UnitMesh mesh = UnitMesh::Dense;
  double grad_divisor = 1.0;  ///< on the expert mesh: ep
  /// Default: the root stays gathered, others do not.
  std::optional<Unit::Keep> keep;
};

class ShardingRuntime {
 public:
  /// Local. Opens the construction scope, which fully_shard(root) closes. LogicError if another scope is open.
  /// `prefetch`: units gathered ahead, by the order recorded in the first step.
  ShardingRuntime(Module& root, Mesh& mesh, int prefetch = 1);
  ~ShardingRuntime();
  ShardingRuntime(const ShardingRuntime&) = delete;
  ShardingRuntime& operator=(const ShardingRuntime&) = delete;

  /// Local. Makes `module` a unit that owns every parameter below it that no nested unit owns. Children before parents,
  /// the root last. Real parameters keep their values (each rank takes its slice of its own copy); meta parameters get
  /// storage, and values are the caller's to fill; meta buffers get their declared value, real ones are not touched.
  /// LogicError if it is sharded already, not below the root, or the root is; ArgumentError or ShapeError for what
  /// cannot be sharded. A failed call leaves the module as it was.
  Unit& fully_shard(Module& module, const ShardOptions& options) { return fully_shard(std::vector{&module}, options); }
  /// Local. The same for modules that run one after another, as one unit: it begins at the first one's input and ends
  /// at the last one's output. ArgumentError if there are none.
  Unit& fully_shard(const std::vector<Module*>& modules, const ShardOptions& options);

  /// Local. Units in the order of fully_shard: children before parents.
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }

  /// While it lives, backward passes are not the last of their step: reductions over the axes that stay Partial between
  /// microbatches wait.
  class NoSync {
   public:
    NoSync(bool& last, bool enabled) : last_(last), before_(last) { last_ = last && !enabled; }
    ~NoSync() { last_ = before_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    bool& last_;
    bool before_;
  };
  /// Local. Restores what was before on every exit. `enabled` false: does nothing, for a loop whose last pass it must
  /// not cover.
  NoSync no_sync(bool enabled = true) { return NoSync(last_microbatch_, enabled); }

  /// Local. What the optimizer updates: one shard per group that requires gradients, in unit order. LogicError, naming
  /// the unit, if gradients are pending (no backward outside no_sync() since) or were never computed.
  std::vector<FlatShard> flat_shards() const;
  /// Local. The same without gradients: what an optimizer allocates state for, before the first backward too.
  std::vector<FlatShard> weight_shards() const;
  /// Collective over the axes where P holds more than O. Main weights -> model weights, for every unit: call it after
  /// filling main weights and after every optimizer step. Issued here, in the order of the last forward; waited for at
  /// the first use.
  void refresh_weights();
  /// Local. Empties pending and final gradients.
  void zero_grad();
  /// Local. Calls `visit` for every parameter range that this rank holds of the main weights.
  void for_each_owned(const std::function<void(const OwnedRange&)>& visit) const;

  Mesh& mesh() const { return mesh_; }
  Module& root() const { return root_; }
  const ModuleNames& names() const { return names_; }
  /// Peak of unsharded storage so far, bytes.
  std::int64_t unsharded_bytes() const { return pool_.allocated_bytes(); }

  // Called by the hooks of the units.
  at::Tensor before_forward(Unit& unit, const at::Tensor& input);
  at::Tensor after_forward(Unit& unit, const at::Tensor& output);
  void before_backward(Unit& unit);
  void after_backward(Unit& unit);

 private:
  // The order of one kind of pass, recorded as it happens; a pass that runs otherwise is recorded anew.
  struct Order {
    std::vector<Unit*> units;
    std::size_t position = 0;
    bool complete = false;

    void begin();
    void enter(Unit* unit);
    void end();
    Unit* ahead(int distance) const;
  };

  void close_scope();
  enum class Pass { Forward, Backward };
  void gather(Unit& unit, const Order& order, Pass pass);
  void release_unused();
  void begin_backward();
  void end_backward();
  void reduce(Unit& unit);
  void retire_reductions(std::size_t leave);
  void finish_finalizations(std::size_t leave);
  void finish_reductions_of(const Unit& unit);
  CommAxes communicators(const GroupPlacement& placement) const;

  Module& root_;
  Mesh& mesh_;
  int prefetch_;
  bool scope_open_ = true;
  ModuleNames names_;
  BufferPool pool_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::set<const Module*> unit_modules_;
  std::set<const Slot*> owned_;
  bool last_microbatch_ = true;
  bool in_backward_ = false;
  int forward_depth_ = 0;
  Order forward_order_, backward_order_;
  std::deque<Unit*> reducing_, finalizing_;  // in order of issue
  std::set<const Unit*> reduced_;  // in this backward
};

}  // namespace meshard
