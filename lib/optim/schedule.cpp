#include "optim/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace meshard {

namespace {
using Type = ScheduleOptions::Type;

// Of what lies between lr and min_lr: all at progress 0, nothing at 1.
double kept(Type type, double progress) {
  switch (type) {
    case Type::Constant:
      return 1.0;
    case Type::Linear:
    case Type::Wsd:
      return 1.0 - progress;
    case Type::Cosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  throw LogicError("unknown schedule of learning rates");
}

struct Decay {
  std::int64_t begin = 0;
  std::int64_t steps = 0;

  /// 0 at `begin`, 1 from `begin + steps` on.
  double progress(std::int64_t step) const {
    if (step >= begin + steps) return 1.0;
    return static_cast<double>(std::max<std::int64_t>(step - begin, 0)) / static_cast<double>(steps);
  }
};

Decay decay_of(const ScheduleOptions& options) {
  std::int64_t after_warmup = std::max<std::int64_t>(options.total_steps - options.warmup_steps, 0);
  if (options.type != Type::Wsd) return {options.warmup_steps, options.decay_steps.value_or(after_warmup)};
  auto steps = options.decay_steps.value_or(std::max<std::int64_t>(options.total_steps / 10, 1));
  steps = std::min(steps, after_warmup);
  return {options.warmup_steps + after_warmup - steps, steps};
}
}  // namespace

double learning_rate(const ScheduleOptions& options, std::int64_t step) {
  if (step < 0) throw ArgumentError(fmt::format("learning_rate: step {} is negative", step));
  if (step < options.warmup_steps) {
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  if (options.type == Type::Constant) return options.lr;  // to the bit
  return options.min_lr + (options.lr - options.min_lr) * kept(options.type, decay_of(options).progress(step));
}

}  // namespace meshard
