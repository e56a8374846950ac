#include "sharding/param_group.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace meshard {

namespace {

Placements all_replicated(std::size_t axes) {
  return Placements(axes, Placement::Replicate);
}

void check_dtype(at::ScalarType dtype, const char* what) {
  if (dtype == at::kFloat || dtype == at::kBFloat16) return;
  throw ArgumentError(fmt::format("{} is {}: use fp32 or bf16 (fp16 would need loss scaling, which is not offered)",
                                  what, c10::toString(dtype)));
}

std::string name_of(const std::string& unit, const GroupPlan& plan) {
  return fmt::format("{}[{}{}]", unit, plan.dtype == at::kFloat ? "fp32" : "bf16", plan.requires_grad ? "" : " frozen");
}

}  // namespace

ParamGroup::ParamGroup(GroupPlan plan, std::string unit, const GroupPlacement& placement, CommAxes axes,
                       const Precision& precision, double grad_divisor, at::Device device, BufferPool& pool)
    : plan_(std::move(plan)),
      unit_(std::move(unit)),
      placement_(placement),
      axes_(std::move(axes)),
      precision_(precision),
      grad_divisor_(grad_divisor),
      pool_(pool),
      layout_(std::make_shared<const GlobalLayout>(plan_.layout)) {
  check_dtype(plan_.dtype, "a parameter's dtype");
  check_dtype(precision_.param, "precision.param");
  check_dtype(precision_.reduce, "precision.reduce");
  name_ = name_of(unit_, plan_);
  if (!(grad_divisor > 0)) throw ArgumentError(fmt::format("grad_divisor must be positive, not {}", grad_divisor));
  if (!plan_.requires_grad) {  // frozen: nothing is ever updated, so the model weights are the main weights
    placement_.optimizer = placement_.params;
    precision_.main_param = precision_.param;
  }
  grads_shard_ = std::ranges::find(placement_.grads, Placement::Flat) != placement_.grads.end();
  auto options = at::TensorOptions().device(device);
  main_ = DBuffer::empty(layout_, axes_, placement_.optimizer, options.dtype(precision_.main_param));
  shares_main_ = precision_.param == precision_.main_param && placement_.params == placement_.optimizer;
  model_ = shares_main_ ? main_ : DBuffer::empty(layout_, axes_, placement_.params, options.dtype(precision_.param));
  std::vector<at::Tensor> originals;
  for (auto& entry : plan_.parameters) originals.push_back(entry.parameter.tensor());
  copy_real_values(originals);
  make_leaves();
}

void ParamGroup::copy_real_values(const std::vector<at::Tensor>& originals) {
  from_meta_ = std::ranges::any_of(originals, [](const at::Tensor& tensor) { return tensor.is_meta(); });
  for (auto* buffer : {&main_, &model_}) {
    for (int i = 0; i < layout_->count(); ++i) {
      if (!originals[i].is_meta()) buffer->copy_from(originals[i], i);
    }
  }
}

void ParamGroup::make_leaves() {
  auto replicated = all_replicated(axes_.size());
  full_ = placement_.gathers() ? as_buffer(tensor_without_memory(layout_->size(), model_.local().options()), replicated)
                               : model_;
  for (int i = 0; i < layout_->count(); ++i) {
    // variable_data: a version counter of its own, so that a refill of the flat storage between forward and backward is
    // not taken for a change of the saved weight.
    auto leaf = full_.get_local(i).view(layout_->shape(i)).variable_data();
    leaf.set_requires_grad(plan_.requires_grad);
    leaves_.push_back(std::move(leaf));
  }
  if (placement_.gathers()) full_.release_storage();
}

void ParamGroup::install() {
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    auto& slot = plan_.parameters[i].parameter.slot();
    slot.tensor = placement_.gathers() ? at::Tensor() : leaves_[i];
    slot.dtype = precision_.param;
  }
  unsharded_ = placement_.gathers() ? Unsharded::Released : Unsharded::Gathered;
}

DBuffer ParamGroup::as_buffer(at::Tensor local, const Placements& placements) const {
  return DBuffer::from_local(std::move(local), layout_, axes_, placements);
}

at::Tensor ParamGroup::empty_flat(const Placements& placements, at::ScalarType dtype) const {
  return DBuffer::empty(layout_, axes_, placements, main_.local().options().dtype(dtype)).local();
}

void ParamGroup::start_gather() {
  if (unsharded_ != Unsharded::Released) return;
  refresh_.wait();
  block_ = pool_.acquire(layout_->size() * full_.local().element_size());
  attach_memory(full_.local(), block_);
  gather_ = model_.start_redistribute(all_replicated(axes_.size()), full_, call()).work;
  unsharded_ = Unsharded::UnderWay;
}

void ParamGroup::finish_gather() {
  refresh_.wait();
  if (is_gathered()) return;
  start_gather();
  gather_.wait();
  unsharded_ = Unsharded::Gathered;
  for (std::size_t i = 0; i < leaves_.size(); ++i) plan_.parameters[i].parameter.slot().tensor = leaves_[i];
}

void ParamGroup::release() {
  if (!placement_.gathers() || unsharded_ == Unsharded::Released) return;
  gather_.wait();
  unsharded_ = Unsharded::Released;
  for (auto& entry : plan_.parameters) entry.parameter.slot().tensor = at::Tensor();
  full_.release_storage();
  pool_.give_back(std::move(block_));
}

void ParamGroup::open_sinks() {
  if (!plan_.requires_grad || partial_.defined()) return;
  if (grads_shard_) {
    auto dtype = precision_.reduce;
    partial_block_ = pool_.acquire(layout_->size() * at::elementSize(dtype));
    partial_ = tensor_without_memory(layout_->size(), main_.local().options().dtype(dtype));
    attach_memory(partial_, partial_block_);
    as_buffer(partial_, all_replicated(axes_.size())).zero_gaps();
  } else {
    if (!pending_.defined()) pending_ = empty_flat(placement_.grads, precision_.main_grad);
    partial_ = pending_;
  }
  auto flat = as_buffer(partial_, all_replicated(axes_.size()));
  for (int i = 0; i < layout_->count(); ++i) {
    plan_.parameters[i].parameter.slot().sink = {flat.get_local(i).view(layout_->shape(i)),
                                                 !grads_shard_ && pending_filled_};
  }
}

void ParamGroup::collect_gradients() {
  if (!plan_.requires_grad) return;
  open_sinks();
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    auto& sink = plan_.parameters[i].parameter.slot().sink;
    auto& grad = leaves_[i].mutable_grad();
    if (grad.defined()) {
      sink.filled ? sink.grad.add_(grad) : sink.grad.copy_(grad);
      grad = at::Tensor();
    } else if (!sink.filled) {
      sink.grad.zero_();
    }
    sink = {};
  }
}

void ParamGroup::start_reduce() {
  if (!plan_.requires_grad || !grads_shard_) return;
  std::optional<DBuffer> out;
  if (!pending_filled_ && precision_.reduce == precision_.main_grad) {
    if (!pending_.defined()) pending_ = empty_flat(placement_.grads, precision_.main_grad);
    out = as_buffer(pending_, placement_.grads);
  }
  auto partial = as_buffer(partial_, Placements(axes_.size(), Placement::Partial));
  auto started = partial.start_redistribute(placement_.grads, out, call());
  reduced_ = started.buffer.local();
  reduce_ = std::move(started.work);
}

void ParamGroup::finish_reduce() {
  if (!plan_.requires_grad) return;
  if (grads_shard_) {
    reduce_.wait();
    if (grad_divisor_ != 1.0) reduced_.div_(grad_divisor_);
    if (!pending_.defined()) pending_ = empty_flat(placement_.grads, precision_.main_grad);
    if (!reduced_.is_same(pending_)) pending_filled_ ? pending_.add_(reduced_) : pending_.copy_(reduced_);
    reduced_ = at::Tensor();
    pool_.give_back(std::move(partial_block_));
  }
  partial_ = at::Tensor();
  pending_filled_ = true;
}

bool ParamGroup::copies_to_finalize() const {
  return placement_.grads != placement_.optimizer && precision_.reduce != precision_.main_grad;
}

void ParamGroup::start_finalize() {
  if (!plan_.requires_grad || !pending_filled_) return;
  rest_ = as_buffer(copies_to_finalize() ? pending_.to(precision_.reduce) : pending_, placement_.grads);
  reduce_next_axis();
}

void ParamGroup::continue_finalize() {
  if (rest_.defined() && rest_.placements() != placement_.optimizer) reduce_next_axis();
}

bool ParamGroup::reduce_next_axis() {
  auto to = rest_.placements();
  auto axis = std::ssize(to) - 1;
  while (axis >= 0 && to[axis] != Placement::Partial) --axis;
  if (axis < 0) return false;
  to[axis] = placement_.optimizer[axis];
  rest_work_.wait();
  auto started = rest_.start_redistribute(to, reduction_target(to), call());
  rest_ = std::move(started.buffer);
  rest_work_ = std::move(started.work);
  return true;
}

// Where the next reduction writes: in place where the size stays, and otherwise where the sum is to lie at last.
std::optional<DBuffer> ParamGroup::reduction_target(const Placements& to) {
  if (held_range(layout_->size(), axes_, to) == rest_.range()) return as_buffer(rest_.local(), to);
  if (final_filled_ || copies_to_finalize()) return {};
  if (!final_.defined()) final_ = empty_flat(placement_.optimizer, precision_.main_grad);
  return as_buffer(final_, to);
}

void ParamGroup::finish_finalize() {
  if (!rest_.defined()) return;
  while (reduce_next_axis()) {
  }
  rest_work_.wait();
  auto result = std::exchange(rest_, {}).local();
  pending_filled_ = false;
  if (!grads_shard_ && grad_divisor_ != 1.0) result.div_(grad_divisor_);
  if (final_filled_) {
    final_.add_(result);
  } else if (result.numel() == pending_.numel()) {
    if (!result.is_same(pending_)) pending_.copy_(result);
    std::swap(pending_, final_);
  } else if (final_.defined()) {
    if (!result.is_same(final_)) final_.copy_(result);
  } else {
    final_ = result.to(precision_.main_grad);
  }
  final_filled_ = true;
}

void ParamGroup::zero_grad() {
  pending_filled_ = final_filled_ = false;
  if (!pending_.defined()) std::swap(pending_, final_);
}

void ParamGroup::refresh() {
  release();
  refresh_.wait();  // of a unit that has not run since
  if (shares_main_) return;
  if (placement_.params == placement_.optimizer) {
    main_.cast(precision_.param, model_);
    return;
  }
  auto mine = model_.redistribute(placement_.optimizer);  // a view
  refresh_ = main_.cast(precision_.param, mine).start_redistribute(placement_.params, model_, call()).work;
}

void ParamGroup::for_each_owned(const std::function<void(const OwnedRange&)>& visit) {
  for (int i = 0; i < layout_->count(); ++i) {
    auto held = main_.elements(i);
    if (held.count() > 0) visit({plan_.parameters[i], held, main_.get_local(i)});
  }
}

FlatShard ParamGroup::flat_shard() const {
  FlatShard shard{name_, main_.local(), final_grad(), {}};
  for (int i = 0; i < layout_->count(); ++i) {
    auto held = main_.elements(i);
    if (held.count() == 0) continue;
    auto begin = layout_->offset(i) + held.begin - main_.range().begin;
    auto decay = plan_.parameters[i].parameter.slot().decay;
    bool joins = !shard.runs.empty() && shard.runs.back().decay == decay && shard.runs.back().end == begin;
    if (joins) {
      shard.runs.back().end = begin + held.count();
    } else {
      shard.runs.push_back({begin, begin + held.count(), decay});
    }
  }
  return shard;
}

bool ParamGroup::counts_in_sums() const {
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    if (placement_.optimizer[axis] != Placement::Flat && axes_[axis]->rank() != 0) return false;
  }
  return true;
}

}  // namespace meshard
