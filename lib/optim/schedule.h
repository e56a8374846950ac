#pragma once
// Learning-rate schedules: a pure function of the step, so a resumed run needs no state for it.
//
// With W = warmup_steps and 0-based step s, the step that trains first being s = 0:
//   s < W      lr * (s + 1) / W: the first step is not wasted on 0, and the last step of the warm-up has lr
//   then, with p = (s - W) / D clamped to [0, 1]:
//   constant   lr
//   linear     lr + p * (min_lr - lr)
//   cosine     min_lr + (lr - min_lr) * (1 + cos(pi p)) / 2
//   wsd        lr until total_steps - D (warm-up, stable, decay), then linear with p = (s - (total_steps - D)) / D
// D = decay_steps. Its default is all steps after the warm-up; for wsd a tenth of total_steps, at least 1 (MiniCPM, Hu
// et al. 2024). A wsd decay never reaches into the warm-up: D is at most total_steps - W. min_lr is reached at the step
// after the last one (s = total_steps, or W + decay_steps) and kept from there on, so that no step is spent at 0: as
// torchtitan (its virtual last step), Megatron-LM, nanoGPT and llm.c do.

#include <cstdint>
#include <optional>

namespace meshard {

struct ScheduleOptions {
  enum class Type { Constant, Linear, Cosine, Wsd } type = Type::Constant;
  double lr = 0.0;  ///< the peak
  std::int64_t warmup_steps = 0;
  double min_lr = 0.0;
  std::int64_t total_steps = 0;
  std::optional<std::int64_t> decay_steps;
};

/// Local. The learning rate of 0-based step `step`. Defined for every step >= 0, also beyond total_steps; throws
/// ArgumentError for a negative one.
double learning_rate(const ScheduleOptions& options, std::int64_t step);

}  // namespace meshard
