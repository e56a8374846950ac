#include "train/options.h"

#include "base/error.h"

namespace meshard {

std::unique_ptr<Optimizer> make_optimizer(const Config& config) {
  auto& options = config.optimizer;
  switch (options.type) {
    case OptimizerConfig::Type::AdamW:
      return std::make_unique<AdamW>(AdamWOptions{options.beta1, options.beta2, options.eps, options.weight_decay});
    case OptimizerConfig::Type::Sgd:
      return std::make_unique<Sgd>(SgdOptions{options.weight_decay});
  }
  throw LogicError("unknown optimizer");
}

namespace {

ScheduleOptions::Type schedule_type(LrScheduleConfig::Type type) {
  using From = LrScheduleConfig::Type;
  using To = ScheduleOptions::Type;
  switch (type) {
    case From::Constant:
      return To::Constant;
    case From::Linear:
      return To::Linear;
    case From::Cosine:
      return To::Cosine;
    case From::Wsd:
      return To::Wsd;
  }
  throw LogicError("unknown schedule of learning rates");
}

CorpusOptions::Type corpus_type(DataConfig::Type type) {
  using From = DataConfig::Type;
  using To = CorpusOptions::Type;
  switch (type) {
    case From::Text:
      return To::Text;
    case From::Indexed:
      return To::Indexed;
    case From::Synthetic:
      return To::Synthetic;
  }
  throw LogicError("unknown type of data");
}

Backend backend_of(CommConfig::Backend backend) {
  using From = CommConfig::Backend;
  switch (backend) {
    case From::Auto:
      return Backend::Auto;
    case From::Mpi:
      return Backend::Mpi;
    case From::Nccl:
      return Backend::Nccl;
  }
  throw LogicError("unknown backend");
}

MpiProgress progress_of(CommConfig::Progress progress) {
  using From = CommConfig::Progress;
  switch (progress) {
    case From::Auto:
      return MpiProgress::Auto;
    case From::Thread:
      return MpiProgress::Thread;
    case From::None:
      return MpiProgress::None;
  }
  throw LogicError("unknown progress");
}

}  // namespace

ScheduleOptions schedule_options(const Config& config) {
  auto& schedule = config.lr_schedule;
  return {schedule_type(schedule.type), config.optimizer.lr, schedule.warmup_steps,
          schedule.min_lr,              config.train.steps,  schedule.decay_steps};
}

CorpusOptions corpus_options(const Config& config) {
  return {corpus_type(config.data.type),
          config.data.files,
          config.data.validation_fraction,
          config.train.seq_len,
          config.model.vocab_size,
          config.run.seed,
          config.data.files_written_at.before};
}

WorldOptions world_options(const Config& config) {
  WorldOptions options;
  options.backend = backend_of(config.comm.backend);
  options.progress = progress_of(config.comm.progress);
  options.timeout = std::chrono::seconds(config.comm.timeout_s);
  return options;
}

}  // namespace meshard
