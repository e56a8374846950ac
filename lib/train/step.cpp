// The heart of the trainer: one optimizer step, and one evaluation.

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "module/device_path.h"
#include "train/evaluate.h"
#include "train/trainer.h"

namespace meshard {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

StepRecord Trainer::step() {
  auto begin = Clock::now();
  StepRecord record;
  record.step = progress_.step + 1;
  record.lr = lr_ = learning_rate(schedule_, progress_.step);

  auto microbatches = config_.accumulation_steps(runtime_.mesh().data_parallel_ranks());
  auto loss = at::zeros({1}, at::device(world_.device()).dtype(at::kDouble));
  for (std::int64_t microbatch = 0; microbatch < microbatches; ++microbatch) {
    loss += forward_backward(microbatch, microbatches, record);
  }
  // What the step has to tell waits on the device for the one read.
  auto norm = gradient_norm(runtime_, balance_ ? at::cat({loss, balance_->step_numbers()}) : loss);
  std::span numbers(norm.riders);
  record.loss = sum_over_ranks(world_, numbers.front()) / world_.size();
  record.grad_norm = norm.value;
  record.nonfinite = norm.nonfinite;
  if (balance_) {
    record.balance = balance_->end_step(/*update=*/norm.finite(), numbers.subspan(1));
    for (auto& layer : record.balance->layers) {
      if (!layer.bias_finite) record.nonfinite.push_back(fmt::format("expert bias of layer {}", layer.layer));
    }
  }
  bool finite = record.nonfinite.empty();
  skipped_in_a_row_ = finite ? 0 : skipped_in_a_row_ + 1;
  if (config_.health.on_nonfinite == HealthConfig::OnNonfinite::Skip) record.skipped_in_a_row = skipped_in_a_row_;
  if (finite) {
    // A device reads gradients times the scale; a CPU, whose results are those of earlier versions, scales them first.
    bool in_passing = on_device_path(world_.device());
    if (!in_passing) clip_gradients(runtime_, norm, config_.train.max_grad_norm);
    auto scale = in_passing ? clip_scale(norm, config_.train.max_grad_norm) : 1.0;
    optimizer_.step(runtime_.flat_shards(), record.lr, scale);
    runtime_.refresh_weights();
  }
  runtime_.zero_grad();
  ++progress_.step;
  progress_.samples += config_.train.global_batch_size;
  progress_.tokens += config_.train.global_batch_size * config_.train.seq_len;
  record.tokens = progress_.tokens;
  record.stall_seconds = checkpoints_.take_stall();

  if (config_.logging.per_layer) {
    for (std::size_t i = 0; i < norm.unit_squares.size(); ++i) {
      auto& unit = *runtime_.units()[i];
      if (!unit.groups().empty()) record.unit_norms.emplace_back(unit.name(), std::sqrt(norm.unit_squares[i]));
    }
  }
  record.seconds = seconds_since(begin);
  return record;
}

// Returns this rank's share of the loss, scaled so that the mean over ranks of the sum over microbatches is the loss.
at::Tensor Trainer::forward_backward(std::int64_t microbatch, std::int64_t microbatches, StepRecord& record) {
  auto begin = Clock::now();
  auto first = progress_.samples;
  auto batch = batches_.train(first, microbatch);
  record.data_seconds += seconds_since(begin);

  // Every sample is whole, so the number of target tokens of a step is known before its first backward. Averaging over
  // the ranks then leaves sum / tokens.
  auto tokens = static_cast<double>(config_.train.global_batch_size * config_.train.seq_len);
  auto scale = world_.size() / tokens;
  if (tap_) {
    auto samples = config_.train.micro_batch_size;
    auto& mesh = runtime_.mesh();
    auto position =
        sample_position(first, microbatch, mesh.data_parallel_rank(), mesh.data_parallel_ranks(), samples, 0);
    tap_->begin(position, samples);
  }
  if (balance_) balance_->begin_microbatch(scale);
  auto scope = runtime_.no_sync(microbatch + 1 < microbatches);
  auto loss = model_.loss(batch.ids, batch.targets, scale);
  loss.backward();
  if (balance_) balance_->end_microbatch(microbatch, microbatches);
  return loss.detach();
}

std::optional<double> Trainer::evaluate() {
  if (balance_) balance_->begin_evaluation();
  return held_out_loss(world_, model_, batches_, [this] { return stop_.agreed().has_value(); });
}

}  // namespace meshard
