#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/keys.h"

namespace meshard {
namespace {

Limits at_least(double low) {
  return {.low = low};
}
Limits above(double low) {
  return {.low = low, .low_open = true};
}
Limits within(double low, double high) {
  return {.low = low, .high = high};
}
Limits from_below(double low, double high) {
  return {.low = low, .high = high, .high_open = true};
}
Limits or_auto(double low) {
  return {.low = low, .zero_word = "auto"};
}
Limits words(std::vector<std::string_view> all) {
  return {.words = std::move(all)};
}

template <class T>
std::vector<std::string_view> words_allowed(const T& value, const Limits& limits) {
  if constexpr (WordEnum<T>) return all_words(value);
  return limits.words;
}

// A config in which every key has a place, so that the defaults of all can be read off.
Config with_all_sections() {
  Config config;
  config.model.moe.emplace();
  return config;
}

// A row for a field of Config, which `field` selects (const or not). The default is the field's own initial value.
template <class Field>
Key key(std::string path, Field field, Limits limits, std::string text) {
  const Config defaults = with_all_sections();
  auto& value = field(defaults);
  auto allowed = words_allowed(value, limits);
  auto range = allowed.empty() ? limits.text() : fmt::format("{}", fmt::join(allowed, ", "));
  return {.doc = {path, type_name(value, limits), write_value(value, limits), range, std::move(text)},
          .takes_text = takes_text(value, limits),
          .read = [=](Config& c, const YamlNode& node) { return read_value(node, limits, field(c)); },
          .write = [=](const Config& c) -> std::optional<std::string> { return write_value(field(c), limits); }};
}

template <class Field>
Key required(std::string path, Field field, Limits limits, std::string text) {
  auto row = key(std::move(path), field, limits, std::move(text));
  row.required = true;
  row.doc.default_value = "required";
  return row;
}

// The default is worked out from other keys (checks.cpp), not fixed.
template <class Field>
Key derived(std::string path, Field field, Limits limits, std::string default_value, std::string text) {
  auto row = key(std::move(path), field, limits, std::move(text));
  row.doc.default_value = std::move(default_value);
  return row;
}

// Keys of model.moe exist in a resolved config only if the section does.
Key in_moe(Key row) {
  row.write = [write = row.write](const Config& c) { return c.model.moe ? write(c) : std::nullopt; };
  return row;
}

Key schema() {
  return {.doc = {"schema", "integer", "required", "1", "version of this format"},
          .required = true,
          .read = [](Config&, const YamlNode& node) -> Problem {
            std::int64_t version = 0;
            if (auto problem = read_value(node, at_least(1), version)) return problem;
            if (version == 1) return {};
            return fmt::format("schema {} is not known to this version; expected 1", version);
          },
          .write = [](const Config&) { return "1"; }};
}

// The reader has put the file's values in the place of absent keys by the time this row is read.
Key from_hf() {
  return {.doc = {"model.from_hf", "text", "none", "",
                  "path of a Hugging Face config.json (llama, qwen3, qwen3_moe, glm4_moe); its values are the defaults "
                  "of the other model keys"},
          .takes_text = true,
          .read = [](Config&, const YamlNode& node) -> Problem {
            std::string path;
            return read_value(node, {}, path);
          },
          .write = [](const Config&) { return std::nullopt; }};
}

Key moe_section() {
  return {.doc = {"model.moe", "section or null", "null", "", "mixture of experts; absent or null: a dense model"},
          .read = [](Config& c, const YamlNode& node) -> Problem {
            c.model.moe.reset();
            if (node.kind == YamlNode::Kind::Map) c.model.moe.emplace();
            return {};
          },
          .write = [](const Config& c) -> std::optional<std::string> {
            if (c.model.moe) return std::nullopt;
            return "null";
          }};
}

Key betas() {
  auto limits = from_below(0, 1);
  return {.doc = {"optimizer.betas", "list of 2 numbers", "[0.9, 0.95]", "[0, 1)",
                  "AdamW: decay of the first and second moment"},
          .read = [=](Config& c,
                      const YamlNode& node) { return read_pair(node, limits, c.optimizer.beta1, c.optimizer.beta2); },
          .write =
              [=](const Config& c) {
                return fmt::format("[{}, {}]", write_value(c.optimizer.beta1, limits),
                                   write_value(c.optimizer.beta2, limits));
              }};
}

#define FIELD(name) [](auto& c) -> auto& { return c.name; }
#define MOE(name) [](auto& c) -> auto& { return c.model.moe->name; }

void add_run_and_model(std::vector<Key>& t) {
  t.push_back(schema());
  t.push_back(key("run.name", FIELD(run.name), {}, "name of the run and of its folder below run.dir"));
  t.push_back(key("run.dir", FIELD(run.dir), {}, "folder that holds run folders"));
  t.push_back(key("run.seed", FIELD(run.seed), at_least(0), "seed of weights and of the order of the data, 64 bits"));
  t.push_back(key("run.threads", FIELD(run.threads), or_auto(1), "threads per rank; auto: cores / local ranks"));
  t.push_back(key("run.deterministic", FIELD(run.deterministic), {},
                  "on GPUs: the same bits in every repeat, at some cost; on CPUs always so"));
  t.push_back(from_hf());
  t.push_back(required("model.vocab_size", FIELD(model.vocab_size), at_least(1),
                       "rows of the embedding; the bytes tokenizer needs 257"));
  t.push_back(required("model.hidden_size", FIELD(model.hidden_size), at_least(1), "width of the residual stream"));
  t.push_back(required("model.num_hidden_layers", FIELD(model.num_hidden_layers), within(1, 100000), "decoder blocks"));
  t.push_back(required("model.num_attention_heads", FIELD(model.num_attention_heads), at_least(1), "query heads"));
  t.push_back(derived("model.num_key_value_heads", FIELD(model.num_key_value_heads), at_least(1), "num_attention_heads",
                      "key and value heads; must divide the query heads"));
  t.push_back(derived("model.head_dim", FIELD(model.head_dim), at_least(2), "hidden_size / num_attention_heads",
                      "width of a head, even"));
  t.push_back(required("model.intermediate_size", FIELD(model.intermediate_size), at_least(1),
                       "width of the SwiGLU of a dense layer"));
  t.push_back(derived("model.max_position_embeddings", FIELD(model.max_position_embeddings), within(1, 1 << 24),
                      "train.seq_len", "longest sequence that the rotary table covers, tokens"));
  t.push_back(key("model.rope_theta", FIELD(model.rope_theta), above(0), "base of the rotary frequencies"));
  t.push_back(key("model.rms_norm_eps", FIELD(model.rms_norm_eps), above(0), "epsilon of every RMSNorm"));
  t.push_back(key("model.use_qk_norm", FIELD(model.use_qk_norm), {}, "RMSNorm on each query and key head"));
  t.push_back(key("model.attention_bias", FIELD(model.attention_bias), {},
                  "bias on the q, k, v projections; also on o unless experts are sigmoid-routed"));
  t.push_back(key("model.partial_rotary_factor", FIELD(model.partial_rotary_factor),
                  {.low = 0, .high = 1, .low_open = true}, "share of head_dim that is rotated"));
  t.push_back(
      key("model.tie_word_embeddings", FIELD(model.tie_word_embeddings), {}, "the output head is the embedding"));
  t.push_back(key("model.initializer_range", FIELD(model.initializer_range), above(0),
                  "standard deviation of initial matrices"));
}

void add_moe(std::vector<Key>& t) {
  auto add = [&](Key row) { t.push_back(in_moe(std::move(row))); };
  t.push_back(moe_section());
  add(required("model.moe.n_routed_experts", MOE(n_routed_experts), within(1, 1 << 20), "routed experts of a layer"));
  add(key("model.moe.num_experts_per_tok", MOE(num_experts_per_tok), at_least(1), "experts that a token goes to"));
  add(key("model.moe.n_shared_experts", MOE(n_shared_experts), within(0, 1 << 20), "experts that every token goes to"));
  add(required("model.moe.moe_intermediate_size", MOE(moe_intermediate_size), at_least(1),
               "width of one expert's SwiGLU"));
  add(key("model.moe.first_k_dense_replace", MOE(first_k_dense_replace), at_least(0),
          "leading layers that stay dense"));
  add(key("model.moe.scoring_func", MOE(scoring_func), {}, "score of an expert from its router logit"));
  add(key("model.moe.n_group", MOE(n_group), at_least(1), "expert groups (sigmoid only)"));
  add(key("model.moe.topk_group", MOE(topk_group), at_least(1), "groups that a token may choose from"));
  add(key("model.moe.norm_topk_prob", MOE(norm_topk_prob), {}, "the chosen scores are scaled to sum 1"));
  add(key("model.moe.routed_scaling_factor", MOE(routed_scaling_factor),
          Limits{.low = 0, .high = 1e6, .low_open = true}, "factor on the routed experts' weights"));
  add(derived("model.moe.expert_bias.enabled", MOE(expert_bias.enabled), {}, "true for sigmoid, else false",
              "balance by a bias on the selection (sigmoid only)"));
  // 0 is legal: published recipes freeze the bias at the end of training.
  add(key("model.moe.expert_bias.update_rate", MOE(expert_bias.update_rate), within(0, 1e6),
          "change of the bias per optimizer step"));
  add(key("model.moe.expert_bias.recenter", MOE(expert_bias.recenter), {}, "subtract the mean of each update"));
  add(key("model.moe.expert_bias.initial", MOE(expert_bias.initial), within(-1e6, 1e6), "bias at the start"));
  add(key("model.moe.aux_loss.type", MOE(aux_loss.type), {}, "auxiliary balance loss"));
  add(key("model.moe.aux_loss.coeff", MOE(aux_loss.coeff), within(0, 1e6), "factor on the auxiliary loss"));
  add(key("model.moe.z_loss_coeff", MOE(z_loss_coeff), within(0, 1e6), "factor on the router's z-loss"));
  add(key("model.moe.capacity_factor", MOE(capacity_factor), Limits{.low = 0, .high = 1e6, .low_open = true},
          "tokens an expert takes, as a multiple of the even share; null: dropless"));
}

void add_parallel_and_train(std::vector<Key>& t) {
  t.push_back(key("parallel.dp_outer", FIELD(parallel.dp_outer), at_least(1), "ranks of the outer (slow) axis"));
  t.push_back(key("parallel.dp_shard", FIELD(parallel.dp_shard), or_auto(1),
                  "ranks of the inner axis; auto: ranks / dp_outer"));
  t.push_back(key("parallel.expert", FIELD(parallel.expert), at_least(1), "ranks that share one set of experts"));
  t.push_back(key("parallel.strategy", FIELD(parallel.strategy), {},
                  "what is sharded over the two axes: parameters, gradients, optimizer state"));
  t.push_back(key("parallel.prefetch", FIELD(parallel.prefetch), at_least(0), "units gathered ahead"));
  t.push_back(key("precision.param", FIELD(precision.param), {}, "dtype of computation and of gathered weights"));
  t.push_back(key("precision.main_param", FIELD(precision.main_param), {}, "dtype of main weights; only fp32"));
  t.push_back(key("precision.main_grad", FIELD(precision.main_grad), {}, "dtype of main gradients; only fp32"));
  t.push_back(key("precision.reduce", FIELD(precision.reduce), {}, "dtype of gradients on the wire"));
  t.push_back(key("init.device", FIELD(init.device), {},
                  "where the model is built: meta allocates shards only, cpu real tensors before sharding"));
  t.push_back(required("train.steps", FIELD(train.steps), at_least(1), "optimizer steps"));
  t.push_back(required("train.global_batch_size", FIELD(train.global_batch_size), at_least(1),
                       "sequences per step over all ranks; a multiple of micro_batch_size x ranks"));
  t.push_back(
      key("train.micro_batch_size", FIELD(train.micro_batch_size), at_least(1), "sequences per rank and forward pass"));
  t.push_back(required("train.seq_len", FIELD(train.seq_len), within(1, 1 << 24), "tokens per sequence"));
  t.push_back(key("train.max_grad_norm", FIELD(train.max_grad_norm), at_least(0),
                  "gradients are scaled down to this global norm; 0: never"));
  t.push_back(key("train.activation_checkpoint", FIELD(train.activation_checkpoint), {},
                  "full: recompute each block in the backward pass"));
  t.push_back(key("train.eval_interval", FIELD(train.eval_interval), at_least(0),
                  "steps between evaluations, and one at the end; 0: none"));
  t.push_back(key("train.eval_batches", FIELD(train.eval_batches), at_least(1), "global batches per evaluation"));
  t.push_back(key("train.max_minutes", FIELD(train.max_minutes), above(0), "stop with a checkpoint after this time"));
}

void add_optimizer_and_data(std::vector<Key>& t) {
  t.push_back(key("optimizer.type", FIELD(optimizer.type), {}, "sgd is plain: no momentum, no state"));
  t.push_back(key("optimizer.lr", FIELD(optimizer.lr), above(0), "learning rate after warm-up"));
  t.push_back(betas());
  t.push_back(key("optimizer.eps", FIELD(optimizer.eps), above(0), "AdamW: added to the root of the second moment"));
  t.push_back(key("optimizer.weight_decay", FIELD(optimizer.weight_decay), at_least(0),
                  "decoupled decay of matrices; not norms, biases, embedding"));
  t.push_back(key("lr_schedule.type", FIELD(lr_schedule.type), {}, "course of the learning rate after warm-up"));
  t.push_back(
      key("lr_schedule.warmup_steps", FIELD(lr_schedule.warmup_steps), at_least(0), "steps of linear rise to lr"));
  t.push_back(key("lr_schedule.min_lr", FIELD(lr_schedule.min_lr), at_least(0), "learning rate at the end of a decay"));
  t.push_back(key("lr_schedule.decay_steps", FIELD(lr_schedule.decay_steps), at_least(1),
                  "length of the decay; null: all steps after warm-up, for wsd the last tenth of train.steps"));
  t.push_back(key("data.type", FIELD(data.type), {}, "text: bytes of files; indexed: Megatron .bin/.idx pairs"));
  t.push_back(key("data.files", FIELD(data.files), {},
                  "files or globs, .gz as they are; indexed: prefixes or .bin files; needed unless synthetic"));
  t.push_back(key("data.validation_fraction", FIELD(data.validation_fraction), from_below(0, 1),
                  "share of each file, at its end, that is held out"));
  t.push_back(key("data.tokenizer", FIELD(data.tokenizer), words({"bytes"}), "how text becomes tokens"));
  t.push_back(key("data.on_change", FIELD(data.on_change), {},
                  "what a resume does whose files are not those of the checkpoint: refuse, or say so and go on"));
}

void add_the_rest(std::vector<Key>& t) {
  t.push_back(key("checkpoint.interval", FIELD(checkpoint.interval), at_least(0),
                  "steps between checkpoints, and one at the end; 0: none but at a stop"));
  t.push_back(key("checkpoint.keep_last", FIELD(checkpoint.keep_last), at_least(1), "newest checkpoints kept"));
  t.push_back(key("checkpoint.keep_every", FIELD(checkpoint.keep_every), at_least(1),
                  "also keep those of every so many steps"));
  t.push_back(key("checkpoint.async", FIELD(checkpoint.async), {}, "write while training goes on"));
  t.push_back(key("checkpoint.on_stop", FIELD(checkpoint.on_stop), {}, "save when asked to stop"));
  t.push_back(key("checkpoint.on_error", FIELD(checkpoint.on_error), {}, "what a failed save does to the run"));
  t.push_back(key("checkpoint.strict", FIELD(checkpoint.strict), {}, "a load refuses missing and extra tensors"));
  t.push_back(key("logging.interval", FIELD(logging.interval), at_least(1), "steps between lines of metrics"));
  t.push_back(key("logging.per_layer", FIELD(logging.per_layer), {}, "gradient norm and expert counts per layer"));
  t.push_back(key("logging.peak_tflops", FIELD(logging.peak_tflops), above(0),
                  "peak of one rank's device, TFLOP/s, for mfu; null: known devices only"));
  t.push_back(key("health.on_nonfinite", FIELD(health.on_nonfinite), {}, "stop the run, or skip the step"));
  t.push_back(key("health.max_skipped", FIELD(health.max_skipped), at_least(1),
                  "steps skipped in a row after which the run stops all the same"));
  t.push_back(key("health.interval", FIELD(health.interval), at_least(1),
                  "steps between checks that replicas are bitwise equal"));
  t.push_back(key("regression.fault", FIELD(regression.fault),
                  words({"none", "clobber_real_buffers", "bias_cast_to_param_dtype", "counts_in_bf16",
                         "update_per_microbatch", "no_outer_reduce", "count_in_eval", "double_count_recompute",
                         "weights_from_biased_scores", "expert_grad_unscaled", "counts_lost_on_resume"}),
                  "switch one historical fault on"));
  t.push_back(key("regression.guards", FIELD(regression.guards), {.yes = "on", .no = "off"},
                  "off lets a faulty run go on, to show its later symptoms"));
  t.push_back(key("regression.record_routing", FIELD(regression.record_routing), {},
                  "file that the chosen expert ids are written to"));
  t.push_back(key("regression.replay_routing", FIELD(regression.replay_routing), {}, "file of expert ids to force"));
  t.push_back(key("comm.backend", FIELD(comm.backend), {}, "auto: nccl where every rank has a GPU, else mpi"));
  t.push_back(key("comm.progress", FIELD(comm.progress), {},
                  "mpi, who moves messages while a rank computes: a thread, or none; auto: a thread where ranks are on "
                  "several hosts"));
  t.push_back(key("comm.timeout_s", FIELD(comm.timeout_s), at_least(1), "a collective that takes longer is a hang, s"));
}

#undef FIELD
#undef MOE

}  // namespace

const std::vector<Key>& key_table() {
  static auto table = [] {
    std::vector<Key> all;
    add_run_and_model(all);
    add_moe(all);
    add_parallel_and_train(all);
    add_optimizer_and_data(all);
    add_the_rest(all);
    return all;
  }();
  return table;
}

}  // namespace meshard
