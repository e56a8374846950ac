#include "comm/timeline/order_observer.h"

#include <ATen/core/function_schema.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <set>
#include <unordered_map>

namespace meshard {

namespace {

enum class Use { Nothing, Read, Write };

/// What an operator does to its arguments and results.
struct Uses {
  std::vector<Use> arguments, results;
};

/// Operators that look at the shape of an argument alone, and do not say so in their schema.
bool only_shape(const std::string& name) {
  static const std::set<std::string> names{"aten::empty_like",     "aten::new_empty",      "aten::new_empty_strided",
                                           "aten::zeros_like",     "aten::ones_like",      "aten::full_like",
                                           "aten::new_zeros",      "aten::new_ones",       "aten::new_full",
                                           "aten::set_",           "aten::resize_",        "aten::resize_as_",
                                           "aten::set_data",       "aten::is_same_size",   "aten::size",
                                           "aten::result_type",    "aten::stride",         "aten::numel",
                                           "aten::expand_as",      "aten::view_as",        "aten::reshape_as",
                                           "aten::can_cast",       "aten::requires_grad_", "aten::retain_grad",
                                           "aten::is_leaf",        "aten::output_nr",      "aten::_version",
                                           "aten::storage_offset", "aten::record_stream"};
  return names.contains(name);
}

// An argument that a result is a view of is not read; one that is written has a mark of its own.
Uses uses_of(const c10::FunctionSchema& schema) {
  Uses uses;
  bool nothing = only_shape(schema.name());
  for (auto& argument : schema.arguments()) {
    auto* alias = argument.alias_info();
    uses.arguments.push_back(nothing            ? Use::Nothing
                             : !alias           ? Use::Read
                             : alias->isWrite() ? Use::Write
                                                : Use::Nothing);
  }
  for (auto& result : schema.returns()) {
    uses.results.push_back(nothing || result.alias_info() ? Use::Nothing : Use::Write);
  }
  return uses;
}

const Uses* uses_of(const at::RecordFunction& call) {
  auto name = call.operator_name();
  if (!name) return nullptr;
  thread_local std::unordered_map<c10::OperatorName, Uses> known;
  auto found = known.find(*name);
  if (found != known.end()) return &found->second;
  auto schema = call.operator_schema();
  return schema ? &known.emplace(*name, uses_of(*schema)).first->second : nullptr;
}

void add(std::vector<ByteRange>& ranges, const at::Tensor& tensor) {
  // Meta tensors and tensors whose memory is detached have none.
  if (!tensor.defined() || !tensor.has_storage() || !tensor.storage().data()) return;
  ranges.push_back(range_of(tensor));
}

void add(std::vector<ByteRange>& ranges, const c10::IValue& value) {
  if (value.isTensor()) return add(ranges, value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorList()) add(ranges, each);
  }
}

void take(Operation& operation, const c10::IValue& value, Use use) {
  if (use == Use::Read) add(operation.reads, value);
  if (use == Use::Write) add(operation.writes, value);
}

std::unique_ptr<at::ObserverContext> before_call(const at::RecordFunction& call) {
  auto* checker = OrderChecker::active();
  auto* uses = checker ? uses_of(call) : nullptr;
  if (!uses) return nullptr;
  Operation operation{.name = call.name()};
  auto inputs = call.inputs();
  for (std::size_t i = 0; i < std::min(inputs.size(), uses->arguments.size()); ++i) {
    take(operation, inputs[i], uses->arguments[i]);
  }
  checker->access(kComputeLane, operation);
  return nullptr;
}

void after_call(const at::RecordFunction& call, at::ObserverContext*) {
  auto* checker = OrderChecker::active();
  auto* uses = checker ? uses_of(call) : nullptr;
  if (!uses) return;
  Operation operation{.name = call.name()};
  auto& outputs = call.outputs();
  for (std::size_t i = 0; i < std::min(outputs.size(), uses->results.size()); ++i) {
    take(operation, outputs[i], uses->results[i]);
  }
  checker->access(kComputeLane, operation);
}

class Frees : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* memory, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    auto* checker = OrderChecker::active();
    auto* begin = static_cast<const char*>(memory);
    if (checker && bytes < 0) checker->retire(kComputeLane, "a free", {begin, begin - bytes});
  }
  bool memoryProfilingEnabled() const override { return true; }
};

}  // namespace

OrderObserver::OrderObserver() {
  checker_.activate();
  auto callback = at::RecordFunctionCallback(before_call, after_call)
                      .needsInputs(true)
                      .needsOutputs(true)
                      .scopes({at::RecordScope::FUNCTION});
  handle_ = at::addGlobalCallback(callback);
  memory_ = std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Frees>());
}

OrderObserver::~OrderObserver() {
  at::removeCallback(handle_);
}

}  // namespace meshard
