#include "config/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "config/words.h"

namespace meshard {
namespace {

std::string count_ranks(int ranks) {
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

void check_name(const RunConfig& run, Report& report) {
  if (!report.clean({"run.name"})) return;
  if (run.name.find('/') != std::string::npos || run.name == "." || run.name == "..") {
    report.at("run.name", fmt::format("`{}` cannot be the name of a folder; expected a name without `/`", run.name));
  }
}

void check_mesh(ParallelConfig& p, int ranks, Report& report) {
  if (!report.clean({"parallel.dp_outer", "parallel.dp_shard"})) return;
  if (p.dp_shard == 0) {
    if (ranks % p.dp_outer != 0) {
      report.at("parallel.dp_outer", fmt::format("{} does not divide the {} of this run; use {}", p.dp_outer,
                                                 count_ranks(ranks), divisors({ranks}, p.dp_outer)));
    }
    p.dp_shard = std::max(ranks / p.dp_outer, 1);
    return;
  }
  auto product = std::int64_t{p.dp_outer} * p.dp_shard;
  if (product == ranks) return;
  auto remedy = ranks % p.dp_outer == 0
                    ? fmt::format("use dp_shard: {} or auto", ranks / p.dp_outer)
                    : fmt::format("use dp_shard: auto and dp_outer {}", divisors({ranks}, p.dp_outer));
  report.at("parallel.dp_shard", fmt::format("dp_outer {} x dp_shard {} = {}, but this run has {}; {}, or start {}",
                                             p.dp_outer, p.dp_shard, product, count_ranks(ranks), remedy, product));
}

void check_expert_axis(const Config& config, int ranks, Report& report) {
  const int expert = config.parallel.expert;
  if (!report.clean({"parallel.expert", "model.moe"}) || expert == 1) return;
  if (!config.model.moe) {
    report.at("parallel.expert",
              fmt::format("{} needs experts, and this model is dense (no model.moe); use 1", expert));
    return;
  }
  const bool counted = report.clean({"model.moe.n_routed_experts"});
  auto experts = config.model.moe->n_routed_experts;
  std::string what;
  if (ranks % expert != 0) what = fmt::format("the {} of this run", count_ranks(ranks));
  if (counted && experts % expert != 0) {
    what += fmt::format("{}the {} routed experts", what.empty() ? "" : " nor ", experts);
  }
  if (what.empty()) return;
  auto both = counted ? std::vector<std::int64_t>{ranks, experts} : std::vector<std::int64_t>{ranks};
  report.at("parallel.expert", fmt::format("{} does not divide {}; use {}", expert, what, divisors(both, expert)));
}

void check_batch(const TrainConfig& t, int ranks, Report& report) {
  if (!report.clean({"train.global_batch_size", "train.micro_batch_size"})) return;
  auto unit = t.micro_batch_size * ranks, batch = t.global_batch_size;
  if (batch % unit == 0) return;
  auto below = batch / unit * unit;
  auto nearest = below == 0 ? fmt::format("{}", unit) : fmt::format("{}, {}", below, below + unit);
  report.at("train.global_batch_size", fmt::format("{} is not a multiple of micro_batch_size {} x {} = {}; nearest: {}",
                                                   batch, t.micro_batch_size, count_ranks(ranks), unit, nearest));
}

void check_precision(const PrecisionConfig& p, Report& report) {
  auto only_fp32 = [&](const char* path, Dtype dtype, const char* what) {
    if (report.clean({path}) && dtype != Dtype::Fp32) {
      report.at(path, fmt::format("`{}` is not supported: this version keeps fp32 {}; expected fp32", to_string(dtype),
                                  what));
    }
  };
  only_fp32("precision.main_param", p.main_param, "main weights");
  only_fp32("precision.main_grad", p.main_grad, "main gradients");
}

void check_schedule(const Config& config, Report& report) {
  auto& s = config.lr_schedule;
  const bool steps_known = report.clean({"lr_schedule.warmup_steps", "train.steps"});
  if (steps_known && s.warmup_steps > config.train.steps) {
    report.at("lr_schedule.warmup_steps",
              fmt::format("{} is more than train.steps {}; expected at most that", s.warmup_steps, config.train.steps));
  }
  if (report.clean({"lr_schedule.min_lr", "optimizer.lr"}) && s.min_lr > config.optimizer.lr) {
    report.at("lr_schedule.min_lr",
              fmt::format("{} is above optimizer.lr {}; expected at most that", s.min_lr, config.optimizer.lr));
  }
  if (!report.clean({"lr_schedule.type", "lr_schedule.decay_steps"})) return;
  using enum LrScheduleConfig::Type;
  if (s.type == Constant && s.decay_steps) {
    report.at("lr_schedule.decay_steps", "a constant schedule has no decay; use null, or another type");
  }
  if (s.type == Wsd && steps_known && s.decay_steps && s.warmup_steps + *s.decay_steps > config.train.steps) {
    report.at("lr_schedule.decay_steps",
              fmt::format("warmup_steps {} + decay_steps {} is more than train.steps {}; expected at most that",
                          s.warmup_steps, *s.decay_steps, config.train.steps));
  }
}

void check_data(const Config& config, Report& report) {
  if (!report.clean({"data.type"})) return;
  const bool text = config.data.type == DataConfig::Type::Text;
  const bool from_files = config.data.type != DataConfig::Type::Synthetic;
  if (from_files && report.clean({"data.files"}) && config.data.files.empty()) {
    report.at("data.files",
              fmt::format("{}; type {} needs a list of files or globs",
                          report.given("data.files") ? "is empty" : "missing", word_of(config.data.type)));
  }
  if (text && report.clean({"model.vocab_size", "data.tokenizer"}) && config.model.vocab_size < 257) {
    report.at("model.vocab_size",
              fmt::format("{} is too small for text data: 256 bytes and the end-of-document id 256; expected >= 257",
                          config.model.vocab_size));
  }
  if (from_files && report.clean({"train.eval_interval", "data.validation_fraction"}) &&
      config.train.eval_interval > 0 && config.data.validation_fraction == 0) {
    report.at("data.validation_fraction",
              fmt::format("0 holds nothing out, but train.eval_interval is {}; give a fraction, or eval_interval: 0",
                          config.train.eval_interval));
  }
}

// A fault that cannot show would pass for a clean run.
void check_fault(const Config& config, int ranks, Report& report) {
  auto& fault = config.regression.fault;
  auto needs = [&](std::string_view name, bool met, const char* what) {
    if (fault == name && !met)
      report.at("regression.fault", fmt::format("{} shows nothing here: it needs {}", name, what));
  };
  if (report.clean({"train.eval_interval"})) {
    needs("count_in_eval", config.train.eval_interval > 0, "train.eval_interval of 1 or more");
  }
  if (report.clean({"train.activation_checkpoint"})) {
    needs("double_count_recompute", config.train.activation_checkpoint == TrainConfig::Checkpointing::Full,
          "train.activation_checkpoint: full");
  }
  if (report.clean({"precision.param"})) {
    needs("bias_cast_to_param_dtype", config.precision.param == Dtype::Bf16, "precision.param: bf16");
  }
  for (auto name :
       {"bias_cast_to_param_dtype", "weights_from_biased_scores", "update_per_microbatch", "no_outer_reduce"}) {
    needs(name, config.model.moe->expert_bias.enabled, "model.moe.expert_bias.enabled: true");
  }
  if (report.clean({"parallel.dp_outer", "parallel.expert"})) {
    needs("no_outer_reduce", config.parallel.dp_outer > 1, "parallel.dp_outer of 2 or more");
    needs("expert_grad_unscaled", config.parallel.expert > 1, "parallel.expert of 2 or more");
  }
  if (report.clean({"train.global_batch_size", "train.micro_batch_size"})) {
    auto microbatches = config.accumulation_steps(ranks);
    needs("update_per_microbatch", microbatches > 1, "2 or more microbatches a step: a smaller train.micro_batch_size");
    needs("counts_lost_on_resume", microbatches > 1 && microbatches % 2 == 0,
          "an even number of microbatches a step: a smaller train.micro_batch_size");
  }
}

void check_regression(const Config& config, int ranks, Report& report) {
  auto& r = config.regression;
  if (r.record_routing && r.replay_routing) {
    report.at("regression.replay_routing", "a run cannot record its routing and replay another's; give one of the two");
  }
  if (!report.clean({"model.moe"})) return;
  bool fault = report.clean({"regression.fault"}) && r.fault != "none";
  if (config.model.moe) {
    if (fault) check_fault(config, ranks, report);
    return;
  }
  auto needs_experts = [&](const char* path, bool given, const char* remedy) {
    if (!given) return;
    report.at(path, fmt::format("needs mixture-of-experts layers, and this model is dense (no model.moe); {}", remedy));
  };
  needs_experts("regression.fault", fault, "use none");
  needs_experts("regression.record_routing", r.record_routing.has_value(), "use null");
  needs_experts("regression.replay_routing", r.replay_routing.has_value(), "use null");
}

void check_length(const Config& config, Report& report) {
  auto seq_len = config.train.seq_len, longest = config.model.max_position_embeddings;
  if (report.clean({"train.seq_len", "model.max_position_embeddings"}) && seq_len > longest) {
    report.at("train.seq_len",
              fmt::format("{} is more than model.max_position_embeddings {}; expected at most that", seq_len, longest));
  }
}

}  // namespace

std::string divisors(const std::vector<std::int64_t>& numbers, std::int64_t near) {
  constexpr std::size_t kAll = 12, kAround = 2;
  std::vector<std::int64_t> all;
  auto smallest = std::ranges::min(numbers);
  for (std::int64_t d = 1; d <= smallest; ++d) {
    if (std::ranges::all_of(numbers, [d](auto n) { return n % d == 0; })) all.push_back(d);
  }
  if (all.size() > kAll) {
    std::ranges::stable_sort(all, {}, [near](auto d) { return std::abs(d - near); });
    all.resize(kAround);
    std::ranges::sort(all);
  }
  std::string list = std::to_string(all.front());
  for (std::size_t i = 1; i < all.size(); ++i) {
    list += (i + 1 == all.size() ? " or " : ", ") + std::to_string(all[i]);
  }
  return list;
}

void check_run(Config& config, int ranks, Report& report) {
  check_name(config.run, report);
  check_mesh(config.parallel, ranks, report);
  check_expert_axis(config, ranks, report);
  check_batch(config.train, ranks, report);
  check_length(config, report);
  check_precision(config.precision, report);
  check_schedule(config, report);
  check_data(config, report);
  check_regression(config, ranks, report);
}

}  // namespace meshard
