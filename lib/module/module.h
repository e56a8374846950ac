#pragma once
// Modules: a tree of named parameters, buffers and children, and the seam where a sharding runtime hooks in. Tensors
// only: nothing here knows of ranks.
//
// A parameter is a shared *slot*, not a tensor. The slot (name, shape, initialisation, decay class) is what modules,
// optimizer and maps hold, for ever; its tensor is swapped by the sharding runtime among meta, shard, full and
// undefined. Buffers are plain tensors.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "module/tensor_part.h"

namespace meshard {

/// The declared distribution of a parameter's first values (sharding/DESIGN.md section 7; the audit checks against it).
struct Init {
  enum class Kind { Normal, Constant };
  Kind kind = Kind::Normal;
  double value = 0.02;  ///< Normal: standard deviation, mean 0. Constant: the value.

  static Init normal(double std) { return {Kind::Normal, std}; }
  static Init constant(double value) { return {Kind::Constant, value}; }
};

/// Where a fused backward may write a parameter's gradient directly, instead of returning it to autograd: a view into
/// the unit's flat gradient buffer. See accumulate_into_sink().
struct GradSink {
  at::Tensor grad;      ///< undefined: no sink, return the gradient
  bool filled = false;  ///< false: the content is garbage and must be overwritten; true: add to it
};

struct Slot {
  at::Tensor tensor;  ///< what a forward reads now; undefined while the unit is not gathered
  Shape shape;        ///< of this rank's parameter, unsharded
  TensorPart part;    ///< where it lies in the parameter of all ranks: all of it, or some experts, rows or columns
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = true;
  Init init;
  bool decay = true;  ///< weight decay applies (matrices, not the embedding or a head tied to it)
  GradSink sink;
};

/// A handle to a slot. Converts to the tensor that a forward reads now.
class Parameter {
 public:
  Parameter() = default;
  explicit Parameter(std::shared_ptr<Slot> slot) : slot_(std::move(slot)) {}

  /// Local. The current tensor. LogicError if it is undefined: the unit that owns it is not gathered.
  const at::Tensor& tensor() const;
  operator const at::Tensor&() const { return tensor(); }

  Slot& slot() const { return *slot_; }
  Slot* id() const { return slot_.get(); }
  explicit operator bool() const { return slot_ != nullptr; }

 private:
  std::shared_ptr<Slot> slot_;
};

struct NamedParameter {
  std::string name;  ///< within its module ("weight"), or the FQN where a function says so
  Parameter parameter;
};

struct Buffer {
  std::string name;
  at::Tensor tensor;                     ///< shares its identity with the member that the module uses
  std::function<at::Tensor()> declared;  ///< makes the declared value anew, on the CPU; the audit compares bitwise
  bool persistent = true;                ///< belongs into a checkpoint
};

class Module;

/// What a sharding runtime does around a module's forward. One per module at most.
class ModuleHooks {
 public:
  virtual ~ModuleHooks() = default;
  /// Local to the module's unit; may communicate. Returns the input to use (the same, or an identity of it in
  /// autograd).
  virtual at::Tensor pre_forward(const at::Tensor& input) = 0;
  virtual at::Tensor post_forward(const at::Tensor& output) = 0;
};

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Local (sharded: as collective as the hooks are). Runs forward() between the hooks.
  at::Tensor operator()(const at::Tensor& input);

  struct Child {
    std::string name;
    Module* module;
  };
  const std::vector<Child>& children() const { return children_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  std::vector<Buffer>& buffers() { return buffers_; }

  void set_hooks(std::unique_ptr<ModuleHooks> hooks) { hooks_ = std::move(hooks); }
  bool has_hooks() const { return hooks_ != nullptr; }

 protected:
  virtual at::Tensor forward(const at::Tensor& input) = 0;

  /// Local. Runs `body` as this module's forward, between the hooks; for modules whose entry takes more than one
  /// tensor.
  at::Tensor invoke(const at::Tensor& input, const std::function<at::Tensor(const at::Tensor&)>& body);

  /// Local. Makes a slot with an uninitialised tensor of this shape on `options`' device (meta: no memory). It is the
  /// whole parameter.
  Parameter add_parameter(std::string name, Shape shape, const at::TensorOptions& options, Init init, bool decay);
  /// Local. The same for a parameter of which this rank has a part. LogicError unless it has as many elements.
  Parameter add_parameter(std::string name, Shape shape, TensorPart part, const at::TensorOptions& options, Init init,
                          bool decay);
  /// Local. Registers an existing slot under a second name: a tied weight.
  void add_parameter(std::string name, Parameter tied);
  /// Local. Registers a buffer that holds declared() (on meta: shape and dtype of it only). The returned handle stays
  /// valid when a meta buffer is materialised.
  at::Tensor add_buffer(std::string name, std::function<at::Tensor()> declared, at::Device device, bool persistent);
  /// `child` must live as long as this module (a member).
  void add_child(std::string name, Module& child);

 private:
  std::vector<Child> children_;
  std::vector<NamedParameter> parameters_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<ModuleHooks> hooks_;
};

/// Local. Depth first, parents before children, with FQNs ("model.layers.0.mlp"; the root's is "").
void walk(Module& root, const std::function<void(const std::string& fqn, Module&)>& visit);

/// Local. Every parameter below `root` with its FQN, in walk order; a tied slot once per name.
std::vector<NamedParameter> named_parameters(Module& root);

/// Local. `prefix.name`, or `name` if the prefix is empty.
std::string join_name(std::string_view prefix, std::string_view name);

/// Local. Writes or adds a gradient into the parameter's sink if it has one of dtype `dtype`: calls
/// write(target, beta) with beta 0 (overwrite) or 1 (add), marks it filled and returns true. False: no such sink, so
/// the caller returns the gradient to autograd.
bool accumulate_into_sink(Slot& slot, at::ScalarType dtype,
                          const std::function<void(at::Tensor& target, int beta)>& write);

}  // namespace meshard
