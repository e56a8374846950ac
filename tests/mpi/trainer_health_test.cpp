// How a trainer ends: on a value that is not finite, before the optimizer step, and says what and where; on any error,
// with the save in flight complete; on a request to stop, with the exit code that what it saved deserves.

#include <ATen/record_function.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/metric_names.h"
#include "checkpoint/load.h"
#include "config/config.h"
#include "data/corpus.h"
#include "module/device_path.h"
#include "plan/sharding.h"
#include "sharding/model_hash.h"
#include "support/host_kernels.h"
#include "support/mpi_test.h"
#include "train/initialise.h"
#include "train/options.h"
#include "train/trainer.h"

using namespace meshard;
namespace fs = std::filesystem;

namespace {

constexpr auto kConfig = R"(
schema: 1
model:
  {vocab_size: 64, hidden_size: 16, num_hidden_layers: 3, num_attention_heads: 2, intermediate_size: 32,
   moe: {n_routed_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 8, first_k_dense_replace: 1}}
train: {steps: 3, global_batch_size: 8, micro_batch_size: 1, seq_len: 8}
data: {type: synthetic}
logging: {interval: 1}
)";

// Synthetic data that tell when they are read.
struct WatchedCorpus : Corpus {
  explicit WatchedCorpus(const Config& config) : inner(open_corpus(corpus_options(config))) {}
  std::int64_t train_samples() const override { return inner->train_samples(); }
  std::int64_t eval_samples() const override { return inner->eval_samples(); }
  void train_sample(std::int64_t index, std::span<std::int64_t> tokens) const override {
    if (on_train) on_train();
    inner->train_sample(index, tokens);
  }
  void eval_sample(std::int64_t index, std::span<std::int64_t> tokens) const override {
    if (on_eval) on_eval();
    inner->eval_sample(index, tokens);
  }
  std::vector<DataFile> files() const override { return {}; }
  bool is_bytes() const override { return false; }
  std::string describe() const override { return ""; }

  std::unique_ptr<Corpus> inner;
  std::function<void()> on_train, on_eval;
};

constexpr auto kDense = R"(
schema: 1
model: {vocab_size: 64, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 32}
train: {steps: 3, global_batch_size: 8, micro_batch_size: 1, seq_len: 8}
data: {type: synthetic}
)";

struct End {
  int exit_code = 0;
  std::string text;
};

// A run on all ranks, as train/run.cpp sets it up, up to its first step.
struct Run {
  explicit Run(const std::string& name, std::vector<std::string> overrides = {}, const Progress& begin = {},
               const char* text = kConfig)
      : world(test_world()),
        ep(text == kConfig && world.size() % 2 == 0 ? 2 : 1),
        folder(fs::path(test_folder()) / name),
        config(parse_config(text, "test.yaml", with_experts(std::move(overrides), ep), world.size())),
        mesh(world, mesh_shape(config, world.size())),
        model(build_model(config, at::kMeta, {ep, mesh.coordinate(Axis::Expert), &mesh.axis(Axis::Expert)})),
        runtime(*model.lm, mesh),
        optimizer(make_optimizer(config)),
        corpus(config),
        batches(corpus, config, mesh),
        log(false),
        metrics(world, log, config, made(folder) / "metrics.jsonl", false, 1.0),
        stop(world, folder / "STOP", std::nullopt) {
    if (model.moe) balance.emplace(*model.moe, world, mesh.axis(Axis::World), mesh.axis(Axis::DpShard));
    for (auto& unit : model_units(model)) runtime.fully_shard(unit.modules, shard_options(config, unit));
    initialise_sharded(runtime, 1);
    optimizer->allocate(runtime.weight_shards());
    checkpoints.emplace(world, log, posix_file_system(), folder / "checkpoints",
                        SavedParts{config, runtime, *optimizer});
    checkpoints->began_from(begin.step);
    TrainerParts parts{*model.lm, runtime, *optimizer,   batches,
                       metrics,   stop,    *checkpoints, balance ? &*balance : nullptr};
    trainer.emplace(config, parts, begin);
  }

  static std::vector<std::string> with_experts(std::vector<std::string> overrides, int ep) {
    overrides.push_back("parallel.expert=" + std::to_string(ep));
    return overrides;
  }
  static const fs::path& made(const fs::path& folder) {
    fs::create_directories(folder);
    return folder;
  }

  End end() {
    try {
      auto outcome = trainer->run(false);
      return {outcome.exit_code, outcome.reason};
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
  }

  // While the samples of this step are read, a STOP file appears.
  void ask_to_stop_in(std::int64_t step) {
    corpus.on_train = [this, step, left = (step - 1) * config.train.global_batch_size / world.size()]() mutable {
      if (left-- == 0 && world.rank() == 0) std::ofstream(folder / "STOP");
    };
  }

  std::vector<std::int64_t> saved() const {
    return CheckpointStore(posix_file_system(), folder / "checkpoints").complete();
  }
  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> all;
    std::ifstream file(folder / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }

  World& world;
  int ep;
  fs::path folder;
  Config config;
  Mesh mesh;
  Model model;
  ShardingRuntime runtime;
  std::unique_ptr<Optimizer> optimizer;
  WatchedCorpus corpus;
  Batches batches;
  Log log;
  Metrics metrics;
  StopRequests stop;
  std::optional<Balance> balance;
  std::optional<Checkpoints> checkpoints;
  std::optional<Trainer> trainer;
};

// One weight of a router.
void set_router(Run& run, float value) {
  run.runtime.for_each_owned([&](const OwnedRange& owned) {
    bool first = owned.elements.begin == 0 && owned.parameter.fqn() == "model.layers.2.mlp.gate.weight";
    if (first) owned.values[0] = value;
  });
  run.runtime.refresh_weights();
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

// Catches: an optimizer step on NaN gradients; a message that drowns the one bad weight among the gradients that it
// spoilt, or that only the rank that holds it can give.
BOOST_AUTO_TEST_CASE(a_nan_in_a_router_is_named) {
  Run run("router");
  set_router(run, std::numeric_limits<float>::quiet_NaN());
  auto before = model_hash(run.runtime);

  auto message = run.end().text;

  BOOST_TEST(says(message, "step 1: not finite: weight model.layers.2.mlp.gate.weight, gradient of "), message);
  BOOST_TEST(model_hash(run.runtime) == before);
}

// Catches: a bias that is not finite and trains on, or takes the optimizer step with it.
BOOST_AUTO_TEST_CASE(a_nan_in_an_expert_bias_is_named) {
  Run run("bias");
  run.model.moe->list()[1]->router().bias()[3] = std::numeric_limits<float>::quiet_NaN();
  auto before = model_hash(run.runtime);

  auto message = run.end().text;

  BOOST_TEST(says(message, "step 1: not finite: expert bias of layer 2;"), message);
  BOOST_TEST(model_hash(run.runtime) == before);
}

// Catches: a save that is dropped because the run ends while it is in flight, whatever ends the run; an end that is not
// noted.
BOOST_AUTO_TEST_CASE(a_save_in_flight_is_completed_by_an_error) {
  auto check = [](Run& run, const std::string& part) {
    auto end = run.end();
    BOOST_TEST(end.exit_code == 70);
    BOOST_TEST(says(end.text, part), end.text);
    run.world.control().barrier();
    BOOST_TEST(run.saved() == std::vector<std::int64_t>{1}, boost::test_tools::per_element());
    BOOST_TEST(!fs::exists(run.folder / "checkpoints/step-00000001.partial"));
    BOOST_TEST(CheckpointReader(posix_file_system(), run.folder / "checkpoints/step-00000001").verify().sound());
    auto last = run.lines().back();
    BOOST_REQUIRE(last.contains("end"));
    BOOST_TEST(last["end"]["exit"] == 70);
    BOOST_TEST(says(last["end"]["reason"], part));
  };
  Run not_finite("not_finite", {"checkpoint.interval=1", "optimizer.lr=1e30"});
  check(not_finite, "step 2: not finite: ");

  Run evaluation("evaluation", {"checkpoint.interval=1", "train.eval_interval=2"});
  evaluation.corpus.on_eval = [] { throw IoError("held-out text cannot be read"); };
  check(evaluation, "held-out text cannot be read");

  if (test_world().size() > 1) {  // else there is no replica that could differ
    Run replicas("replicas", {"checkpoint.interval=1", "health.interval=2"});
    if (replicas.world.rank() > 0) replicas.model.moe->list()[0]->router().bias()[3] = 0.25f;
    check(replicas, "the expert bias is not the same on all ranks");
  }
}

// Catches: a number in metrics.jsonl that the table does not have, which `compare` would then take for a result.
BOOST_AUTO_TEST_CASE(every_number_of_a_line_is_in_the_table) {
  Run run("table", {"logging.per_layer=true", "train.eval_interval=2", "train.steps=2"});
  run.end();
  run.world.control().barrier();
  auto check = [](const nlohmann::json& object, const std::string& prefix) {
    for (auto& item : object.items()) BOOST_TEST(find_metric(prefix + item.key()) != nullptr, prefix << item.key());
  };
  int checked = 0;
  for (auto& line : run.lines()) {
    if (!line.contains("step")) continue;
    check(line, "");
    ++checked;
    if (!line.contains("moe")) continue;
    check(line["moe"], "moe.");
    for (auto& layer : line["moe"]["layers"]) check(layer, "moe.");
  }
  BOOST_TEST(checked == 3);
}

// Catches: steps that are skipped for ever, without a word; a count that goes on after a sound step.
BOOST_AUTO_TEST_CASE(skipped_steps_are_counted_and_end_a_run) {
  Run run("skip", {"health.on_nonfinite=skip", "health.max_skipped=2", "train.steps=5", "optimizer.lr=1e30"});
  auto end = run.end();
  BOOST_TEST(end.exit_code == 70);
  BOOST_TEST(says(end.text, "step 3: not finite: "), end.text);
  BOOST_TEST(says(end.text, "those of step 1; 2 steps in a row were skipped (health.max_skipped)"), end.text);
  run.world.control().barrier();
  auto lines = run.lines();
  BOOST_REQUIRE(lines.size() == 4);
  BOOST_TEST(!lines[0].contains("skipped_in_a_row"));
  BOOST_TEST(lines[1]["skipped_in_a_row"] == 1);
  BOOST_TEST(lines[2]["skipped_in_a_row"] == 2);

  Run healed("healed", {"health.on_nonfinite=skip"});
  for (auto [value, counted] : {std::pair{std::numeric_limits<float>::quiet_NaN(), 1}, {0.5f, 0}}) {
    set_router(healed, value);
    BOOST_TEST(healed.trainer->step().skipped_in_a_row == counted);
  }
}

// Catches: exit code 75, which asks for another start, of a run that has saved nothing in this one: the next would come
// no further.
BOOST_AUTO_TEST_CASE(only_a_newer_checkpoint_asks_for_another_start) {
  const std::string nothing = "; no step was saved; give it more time than ";
  auto check = [](Run& run, int code, const std::string& part, const std::vector<std::int64_t>& saved) {
    auto end = run.end();
    BOOST_TEST(end.exit_code == code);
    BOOST_TEST(says(end.text, part), end.text);
    run.world.control().barrier();
    BOOST_TEST(run.saved() == saved, boost::test_tools::per_element());
  };
  auto asked_before = [](Run& run) {
    if (run.world.rank() == 0) std::ofstream(run.folder / "STOP");
    run.world.control().barrier();
  };
  Run fresh("fresh");
  asked_before(fresh);
  check(fresh, 70, "stopped after step 0: a STOP file asked for it" + nothing, {});

  Run resumed("resumed", {}, {2, 16, 128});
  asked_before(resumed);
  check(resumed, 70, "stopped after step 2: a STOP file asked for it" + nothing, {});

  Run trained("trained", {"train.steps=9"}, {2, 16, 128});
  trained.ask_to_stop_in(1);
  check(trained, 75, "stopped after step 3: a STOP file asked for it; its checkpoint is complete", {3});

  Run between("between", {"train.steps=9", "checkpoint.on_stop=false", "checkpoint.interval=2"});
  between.ask_to_stop_in(3);
  check(between, 75, "checkpoint.on_stop is false, so what followed step 2 is lost", {2});

  Run unsaved("unsaved", {"train.steps=9", "checkpoint.on_stop=false", "checkpoint.interval=9"}, {2, 16, 128});
  unsaved.ask_to_stop_in(1);
  check(unsaved, 70, "checkpoint.on_stop is false, so what followed step 2 is lost" + nothing, {});
}

// Catches: tokens worked out from samples, as if all of the run had had today's train.seq_len.
BOOST_AUTO_TEST_CASE(tokens_are_counted) {
  Run run("tokens", {}, {1, 8, 8 * 32});  // a step of sequences of 32
  BOOST_TEST(run.trainer->step().tokens == 8 * 32 + 8 * 8);
}

namespace {

// Operators for which the host waits on a device, whoever calls them; but for two whose kernels for CPUs alone read
// their arguments.
struct HiddenWaits {
  HiddenWaits() {
    handle = at::addGlobalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& function) {
          static const std::set<std::string_view> kWaiting{
              "aten::_local_scalar_dense", "aten::nonzero", "aten::bincount",
              "aten::masked_select",       "aten::equal",   "aten::is_nonzero"};
          inside += reads_on_cpu(function);
          if (inside == 0 && kWaiting.contains(function.name())) ++count;
          return std::unique_ptr<at::ObserverContext>();
        },
        [](const at::RecordFunction& function, at::ObserverContext*) { inside -= reads_on_cpu(function); }));
  }
  ~HiddenWaits() { at::removeCallback(handle); }
  static bool reads_on_cpu(const at::RecordFunction& function) {
    return function.name() == std::string_view("aten::_fused_adamw_") ||
           function.name() == std::string_view("aten::_grouped_mm");
  }
  at::CallbackHandle handle;
  inline static std::atomic<int> count = 0;
  inline static thread_local int inside = 0;
};

std::int64_t waits_of_a_step(Run& run) {
  run.trainer->step();  // the first one makes what stays
  const HiddenWaits hidden;
  HiddenWaits::count = 0;
  auto before = host_wait_count();
  run.trainer->step();
  BOOST_TEST(HiddenWaits::count == 0);
  return host_wait_count() - before;
}

}  // namespace

// Catches: a host that waits for a device more often than once a dense step, once more a layer and microbatch where
// tokens go to experts of other ranks (or where experts are a loop), and no more where each has its offsets on the
// device; a read by another way than the counted one.
BOOST_AUTO_TEST_CASE(the_host_waits_once_a_step) {
  const DevicePathScope path;
  Run dense("dense_waits", {}, {}, kDense);
  BOOST_TEST(waits_of_a_step(dense) == 1);
  Run experts("expert_waits");
  auto reads = 2 * 8 / experts.world.size();  // layers with experts, microbatches
  BOOST_TEST(waits_of_a_step(experts) == 1 + reads);
  const KernelScope kernels(kernels::kHostTable);
  Run grouped("grouped_waits", {"precision.param=bf16"});
  BOOST_TEST(waits_of_a_step(grouped) == 1 + (grouped.ep > 1 ? reads : 0));
}
