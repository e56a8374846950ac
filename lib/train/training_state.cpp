#include "train/training_state.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace meshard {

namespace {

using pickle::Value;

constexpr float kMostSteps = 1 << 24;  // beyond it a float does not count on

// What torch.optim's constructors put into a group beside the hyperparameters: Python's strict load wants every key.
pickle::Pairs group_of(const OptimizerConfig& config, double lr, bool decays) {
  auto flag = [](bool value) { return Value::boolean(value); };
  auto pair = [](const char* key, Value value) { return std::pair{Value::string(key), std::move(value)}; };
  auto decay = Value::real(decays ? config.weight_decay : 0.0);
  switch (config.type) {
    case OptimizerConfig::Type::Sgd:
      return {pair("lr", Value::real(lr)),
              pair("initial_lr", Value::real(config.lr)),
              pair("momentum", Value::integer_of(0)),
              pair("dampening", Value::integer_of(0)),
              pair("weight_decay", decay),
              pair("nesterov", flag(false)),
              pair("maximize", flag(false)),
              pair("foreach", Value::none()),
              pair("differentiable", flag(false)),
              pair("fused", Value::none())};
    case OptimizerConfig::Type::AdamW:
      return {pair("lr", Value::real(lr)),
              pair("initial_lr", Value::real(config.lr)),
              pair("betas", Value::tuple({Value::real(config.beta1), Value::real(config.beta2)})),
              pair("eps", Value::real(config.eps)),
              pair("weight_decay", decay),
              pair("amsgrad", flag(false)),
              pair("maximize", flag(false)),
              pair("foreach", Value::none()),
              pair("capturable", flag(false)),
              pair("differentiable", flag(false)),
              pair("fused", Value::none()),
              pair("decoupled_weight_decay", flag(true))};
  }
  throw LogicError("unknown optimizer");
}

// Group 0: what decays; group 1: the rest. An empty one is left out.
void add_parameter_groups(StateDict& state, const ShardingRuntime& runtime, const Config& config, double lr) {
  std::int64_t index = 0;
  for (bool decays : {true, false}) {
    pickle::Items names;
    for (auto& [fqn, parameter] : runtime.names().parameters()) {
      auto& slot = parameter.slot();
      bool first_name = runtime.names().of(parameter).front() == fqn;
      if (first_name && slot.requires_grad && slot.decay == decays) names.push_back(Value::string(fqn));
    }
    if (names.empty()) continue;
    auto group = group_of(config.optimizer, lr, decays);
    group.push_back({Value::string("params"), Value::list(std::move(names))});
    for (auto& [key, value] : group) {
      std::vector<PathElement> path{std::string("optimizer"), std::string("param_groups"), index, key.text()};
      state.values.push_back({flat_key(path), path, value});
    }
    ++index;
  }
}

void add_optimizer_state(StateDict& state, const ShardingRuntime& runtime, const Optimizer& optimizer) {
  auto held = optimizer.state();
  auto steps = at::full({}, static_cast<double>(optimizer.steps()), at::kFloat);
  for (auto& unit : runtime.units()) {
    for (auto& group : unit->groups()) {
      auto& shard = group->name();
      for (auto& [owner, state_name, tensor] : held) {
        if (owner != shard) continue;
        auto path = [&name = state_name](const std::string& fqn) {
          return std::vector<PathElement>{"optimizer", "state", fqn, name};
        };
        std::ranges::move(group_tensors(*group, runtime.mesh(), tensor, path, false),
                          std::back_inserter(state.tensors));
      }
      bool has_state = std::ranges::any_of(held, [&](auto& entry) { return entry.shard == shard; });
      for (auto& parameter : group->plan().parameters) {
        if (!has_state) break;
        std::vector<PathElement> path{"optimizer", "state", parameter.fqn(), "step"};
        state.tensors.push_back(replicated_tensor(path, steps.clone(), runtime.mesh().world().size()));
      }
    }
  }
}

}  // namespace

StateDict training_state(const ShardingRuntime& runtime, const Optimizer& optimizer, const Config& config, double lr) {
  auto state = model_state(runtime);
  add_optimizer_state(state, runtime, optimizer);
  add_parameter_groups(state, runtime, config, lr);
  return state;
}

std::int64_t optimizer_steps(const StateDict& state, const std::string& where) {
  const StateTensor* first = nullptr;
  float steps = 0.0f;
  for (auto& tensor : state.tensors) {
    bool counts = tensor.key.starts_with("optimizer.state.") && tensor.key.ends_with(".step");
    if (!counts) continue;
    auto own = tensor.pieces.front().values.item<float>();
    if (!(own >= 0.0f && own < kMostSteps && own == std::floor(own))) {
      throw IoError(fmt::format("{}: {} is {}: no count of steps", where, tensor.key, own));
    }
    if (first && own != steps) {
      throw IoError(fmt::format(
          "{}: {} is {}, but {} is {}: Meshard keeps one count of steps for all parameters; --init-from takes "
          "the weights alone",
          where, first->key, steps, tensor.key, own));
    }
    first = &tensor;
    steps = own;
  }
  return static_cast<std::int64_t>(steps);
}

}  // namespace meshard
