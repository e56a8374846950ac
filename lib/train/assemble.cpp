#include "train/assemble.h"

#include "plan/assemble.h"

namespace meshard {

std::unique_ptr<Optimizer> make_optimizer(const Config& config) {
  auto& options = config.optimizer;
  if (options.type == OptimizerConfig::Type::Sgd) return std::make_unique<Sgd>(SgdOptions{options.weight_decay});
  return std::make_unique<AdamW>(AdamWOptions{options.beta1, options.beta2, options.eps, options.weight_decay});
}

ScheduleOptions schedule_options(const Config& config) {
  using From = LrScheduleConfig::Type;
  using To = ScheduleOptions::Type;
  auto type = [&] {
    switch (config.lr_schedule.type) {
      case From::Linear:
        return To::Linear;
      case From::Cosine:
        return To::Cosine;
      case From::Wsd:
        return To::Wsd;
      default:
        return To::Constant;
    }
  }();
  auto& schedule = config.lr_schedule;
  return {type, config.optimizer.lr, schedule.warmup_steps, schedule.min_lr, config.train.steps, schedule.decay_steps};
}

CorpusOptions corpus_options(const Config& config) {
  using From = DataConfig::Type;
  using To = CorpusOptions::Type;
  auto type = config.data.type == From::Text      ? To::Text
              : config.data.type == From::Indexed ? To::Indexed
                                                  : To::Synthetic;
  return {type,
          config.data.files,
          config.data.validation_fraction,
          config.train.seq_len,
          config.model.vocab_size,
          config.run.seed,
          config.data.files_written_at.before};
}

WorldOptions world_options(const Config& config) {
  using From = CommConfig::Backend;
  WorldOptions options;
  options.backend = config.comm.backend == From::Mpi    ? Backend::Mpi
                    : config.comm.backend == From::Nccl ? Backend::Nccl
                                                        : Backend::Auto;
  options.timeout = std::chrono::seconds(config.comm.timeout_s);
  return options;
}

HfModel hf_model(const Config& config) {
  HfModel model{decoder_config(config), {}, 0};
  if (!config.model.moe) return model;
  model.moe = moe_options(config);
  model.first_k_dense_replace = config.model.moe->first_k_dense_replace;
  return model;
}

}  // namespace meshard
