#pragma once
// The configuration of a run as plain structs: valid, or refused. train/CONTRACT.md section 2. Field names are the YAML
// keys.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/strategy.h"

namespace meshard {

struct RunConfig {
  std::string name = "run";
  std::string dir = "runs";
  std::uint64_t seed = 1234;
  int threads = 0;             ///< per rank; 0 = auto: cores of the node / ranks on it
  bool deterministic = false;  ///< on GPUs; CPUs always are
  bool operator==(const RunConfig&) const = default;
};

struct ExpertBiasConfig {
  bool enabled = true;
  double update_rate = 1e-3;
  bool recenter = false;
  double initial = 0.0;
  bool operator==(const ExpertBiasConfig&) const = default;
};

struct AuxLossConfig {
  enum class Type { None, Switch, Sequence } type = Type::None;
  double coeff = 0.0;
  bool operator==(const AuxLossConfig&) const = default;
};

struct MoeConfig {
  enum class Scoring { Sigmoid, Softmax };
  std::int64_t n_routed_experts = 0;
  std::int64_t num_experts_per_tok = 2;
  std::int64_t n_shared_experts = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t first_k_dense_replace = 0;
  Scoring scoring_func = Scoring::Sigmoid;
  std::int64_t n_group = 1;
  std::int64_t topk_group = 1;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;
  ExpertBiasConfig expert_bias;
  AuxLossConfig aux_loss;
  double z_loss_coeff = 0.0;
  std::optional<double> capacity_factor;
  bool operator==(const MoeConfig&) const = default;
};

struct ModelConfig {
  std::int64_t vocab_size = 0;  ///< required, like every size without a default
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;  ///< default: num_attention_heads
  std::int64_t head_dim = 0;             ///< default: hidden_size / num_attention_heads
  std::int64_t intermediate_size = 0;
  std::int64_t max_position_embeddings = 0;  ///< default: train.seq_len
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-5;
  bool use_qk_norm = false;
  bool attention_bias = false;
  double partial_rotary_factor = 1.0;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  std::optional<MoeConfig> moe;  ///< absent: dense
  bool operator==(const ModelConfig&) const = default;
};

struct ParallelConfig {
  int dp_outer = 1;
  int dp_shard = 0;  ///< 0 = auto: ranks / dp_outer
  int expert = 1;
  Strategy strategy = Strategy::Fsdp;
  int prefetch = 1;
  bool operator==(const ParallelConfig&) const = default;
};

enum class Dtype { Fp32, Bf16 };

struct PrecisionConfig {
  Dtype param = Dtype::Fp32;
  Dtype main_param = Dtype::Fp32;
  Dtype main_grad = Dtype::Fp32;
  Dtype reduce = Dtype::Fp32;
  bool operator==(const PrecisionConfig&) const = default;
};

struct InitConfig {
  enum class Device { Meta, Cpu } device = Device::Meta;
  bool operator==(const InitConfig&) const = default;
};

struct TrainConfig {
  std::int64_t steps = 0;
  std::int64_t global_batch_size = 0;
  std::int64_t micro_batch_size = 1;
  std::int64_t seq_len = 0;
  double max_grad_norm = 1.0;  ///< 0 = no clipping
  enum class Checkpointing { None, Full } activation_checkpoint = Checkpointing::None;
  std::int64_t eval_interval = 0;  ///< 0 = no evaluation
  std::int64_t eval_batches = 8;
  std::optional<double> max_minutes;
  bool operator==(const TrainConfig&) const = default;
};

struct OptimizerConfig {
  enum class Type { AdamW, Sgd } type = Type::AdamW;
  double lr = 3e-4;
  double beta1 = 0.9;  ///< betas: [beta1, beta2]
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool operator==(const OptimizerConfig&) const = default;
};

struct LrScheduleConfig {
  enum class Type { Constant, Linear, Cosine, Wsd } type = Type::Constant;
  std::int64_t warmup_steps = 0;
  double min_lr = 0.0;
  std::optional<std::int64_t>
      decay_steps;  ///< linear, cosine: steps after warm-up, default the rest; wsd: of the final decay
  bool operator==(const LrScheduleConfig&) const = default;
};

/// Where the entries of a list were written, for messages that only a run can give; no part of what a config says.
struct WrittenAt {
  std::vector<std::string> before;  ///< what a message about an entry begins with, before its key
  bool operator==(const WrittenAt&) const { return true; }
};

struct DataConfig {
  enum class Type { Text, Indexed, Synthetic } type = Type::Text;
  std::vector<std::string> files;  ///< globs allowed; indexed: prefixes or .bin files
  double validation_fraction = 0.05;
  std::string tokenizer = "bytes";
  enum class OnChange { Stop, Warn } on_change = OnChange::Stop;
  WrittenAt files_written_at;  ///< of `files`, where the config was read
  bool operator==(const DataConfig&) const = default;
};

struct CheckpointConfig {
  std::int64_t interval = 0;
  std::int64_t keep_last = 2;
  std::optional<std::int64_t> keep_every;
  bool async = true;
  bool on_stop = true;
  enum class OnError { Stop, Continue } on_error = OnError::Stop;
  bool strict = true;
  bool operator==(const CheckpointConfig&) const = default;
};

struct LoggingConfig {
  std::int64_t interval = 10;
  bool per_layer = false;
  std::optional<double> peak_tflops;
  bool operator==(const LoggingConfig&) const = default;
};

struct HealthConfig {
  enum class OnNonfinite { Stop, Skip } on_nonfinite = OnNonfinite::Stop;
  std::int64_t max_skipped = 10;
  std::int64_t interval = 50;
  bool operator==(const HealthConfig&) const = default;
};

struct RegressionConfig {
  std::string fault = "none";
  bool guards = true;
  std::optional<std::string> record_routing;
  std::optional<std::string> replay_routing;
  bool operator==(const RegressionConfig&) const = default;
};

struct CommConfig {
  enum class Backend { Auto, Mpi, Nccl } backend = Backend::Auto;
  enum class Progress { Auto, Thread, None } progress = Progress::Auto;
  int timeout_s = 600;
  bool operator==(const CommConfig&) const = default;
};

struct Config {
  RunConfig run;
  ModelConfig model;
  ParallelConfig parallel;
  PrecisionConfig precision;
  InitConfig init;
  TrainConfig train;
  OptimizerConfig optimizer;
  LrScheduleConfig lr_schedule;
  DataConfig data;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  HealthConfig health;
  RegressionConfig regression;
  CommConfig comm;

  /// Local. global_batch_size / (micro_batch_size * data_parallel_ranks). Exact once the config was checked for a run.
  std::int64_t accumulation_steps(int data_parallel_ranks) const {
    return train.global_batch_size / (train.micro_batch_size * data_parallel_ranks);
  }
  bool operator==(const Config&) const = default;
};

/// Local. Reads a YAML file strictly, applies `overrides` ("a.b=value", the same checks), fills defaults in, and checks
/// it for a run of `ranks` ranks (dp_shard: auto is resolved). Throws ConfigError with ALL problems of the file, one a
/// line, as `file:line:column  key.path: what is wrong; what was expected; did you mean X?` (an override: `--set key`).
/// Data files are not opened.
Config load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides, int ranks);

/// Local. The same from text; `name` stands for the file in messages.
Config parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& overrides,
                    int ranks);

/// Local. The config as YAML with every default filled in; parse_config of it gives the same config.
std::string resolved_yaml(const Config& config);

/// One key in which two configs differ, values as YAML ("absent" where one has none).
struct ConfigChange {
  std::string key;
  std::string from, to;
  /// The two are different models: weights of one are not weights of the other. Not: what only steers training (losses,
  /// bias updates, first values), or the length of tables.
  bool other_model = false;
};

/// Local. In the order of the file; where the run's folder is (run.dir, run.name) is none.
std::vector<ConfigChange> config_changes(const Config& from, const Config& to);

/// Local. What changes from the model of a Hugging Face config.json to that of `config`, as in config_changes(). What
/// the file does not say (expert bias, losses) is as in `config`. Throws ConfigError, with all problems, for a file
/// that `model.from_hf` would refuse.
std::vector<ConfigChange> changes_from_hugging_face(const std::filesystem::path& file, const Config& config);

/// One row of the reference table: every key once.
struct KeyDoc {
  std::string key;  ///< "train.seq_len"
  std::string type;
  std::string default_value;  ///< "required" if there is none
  std::string range;
  std::string text;  ///< what it means, with its unit
};

/// Local. Every key, in the order of the file. README's table is tested against it.
const std::vector<KeyDoc>& config_keys();

std::string_view to_string(Dtype dtype);

}  // namespace meshard
