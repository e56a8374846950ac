// What the configuration accepts, what it fills in, and that the resolved form is the same config.
#include "config/config.h"

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/values.h"
#include "unit/config_text.h"

using namespace meshard;
using namespace meshard::testing;

namespace {

const std::filesystem::path kConfigs = std::filesystem::path(MESHARD_GOLDENS) / "../../configs";

Config parse(const std::string& text, const std::vector<std::string>& overrides = {}, int ranks = 4) {
  return parse_config(text, "run.yaml", overrides, ranks);
}

std::string refusal(const std::vector<std::string>& overrides) {
  try {
    parse(kMinimal, overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

// A config with experts, in which every key of the table has an effect.
const std::string kMoe =
    with("model", "moe: {n_routed_experts: 8, moe_intermediate_size: 32, aux_loss: {type: switch, coeff: 0.01}}");

std::string value_in(const std::string& yaml, const std::string& key) {
  std::string line = "\n" + yaml;
  std::size_t at = 0;
  for (std::size_t begin = 0, depth = 0; begin <= key.size(); ++depth) {
    auto dot = std::min(key.find('.', begin), key.size());
    auto name = std::string(1, '\n').append(2 * depth, ' ').append(key, begin, dot - begin).append(":");
    at = line.find(name, at);
    if (at == std::string::npos) return "(none)";
    at += name.size();
    begin = dot + 1;
  }
  return line.substr(at + 1, line.find('\n', at) - at - 1);
}

}  // namespace

// Catches: a default that is not filled in, or differs from the documented one.
BOOST_AUTO_TEST_CASE(defaults_are_filled_in) {
  auto config = parse(kMinimal);
  BOOST_TEST(config.model.num_key_value_heads == 4);
  BOOST_TEST(config.model.head_dim == 32);
  BOOST_TEST(config.model.max_position_embeddings == 16);
  BOOST_TEST(config.parallel.dp_shard == 4);
  BOOST_TEST(config.accumulation_steps(4) == 2);
  BOOST_TEST(!config.model.moe.has_value());
  BOOST_TEST(config.run.seed == 1234u);
  BOOST_TEST(
      parse(kMinimal, {"model.moe={n_routed_experts: 4, moe_intermediate_size: 8}"}).model.moe->expert_bias.enabled);
  BOOST_TEST(!parse(kMinimal, {"model.moe={n_routed_experts: 4, moe_intermediate_size: 8, scoring_func: softmax}"})
                  .model.moe->expert_bias.enabled);
}

// Catches: a key that the resolved config loses, changes or writes so that it cannot be read again.
BOOST_AUTO_TEST_CASE(resolved_config_is_the_same_config) {
  for (auto& text : {kMinimal, kMoe}) {
    auto config = parse(text, {"optimizer.lr=1e-3", "optimizer.eps=1.2345678901234567e-11",
                               "run.name=\"a \\\"b\\\" \\\\ 7\"", "data.files=[\"*.txt\", \"010\", \"null\", ünï/x.gz]",
                               "run.seed=18446744073709551615", "train.max_minutes=0.1", "regression.guards=off"});
    auto yaml = resolved_yaml(config);
    auto again = parse(yaml);
    BOOST_TEST((again == config));
    BOOST_TEST(resolved_yaml(again) == yaml);
  }
}

// Catches: a row of the table that does not read or write its key, a documented default that is not the real one, and a
// key documented twice.
BOOST_AUTO_TEST_CASE(every_key_is_read_and_written) {
  auto yaml = resolved_yaml(parse(kMoe));
  std::set<std::string> seen;
  for (auto& doc : config_keys()) {
    BOOST_TEST_CONTEXT(doc.key) {
      BOOST_TEST(seen.insert(doc.key).second);
      BOOST_TEST(!doc.text.empty());
      if (doc.key == "model.from_hf" || doc.key == "model.moe") continue;
      auto value = value_in(yaml, doc.key);
      BOOST_TEST(value != "(none)");
      const bool given = kMoe.find(doc.key.substr(doc.key.rfind('.') + 1) + ":") != std::string::npos;
      const bool derived =
          doc.default_value.find(' ') != std::string::npos || doc.default_value.find("_") != std::string::npos;
      if (!given && !derived && doc.key != "parallel.dp_shard") BOOST_TEST(value == doc.default_value);
      auto again = parse(kMoe, {doc.key + "=" + value});
      BOOST_TEST(resolved_yaml(again) == yaml);
    }
  }
}

// Catches: a key that swallows a value of a wrong type, or a refusal that does not say which key.
BOOST_AUTO_TEST_CASE(every_key_refuses_a_wrong_type) {
  for (auto& doc : config_keys()) {
    for (const std::string wrong : {"{a: 1}", "[[1], {b: 2}]", "yes", "0x1F", "~"}) {
      const bool nullable = doc.type.find("null") != std::string::npos;
      if ((wrong == "~" && nullable) || (wrong[0] == '{' && doc.key == "model.moe")) continue;
      if (doc.type.starts_with("text") && wrong != "~") continue;  // what follows the `=` is a text: see below
      BOOST_TEST_CONTEXT(doc.key << "=" << wrong) {
        auto message = refusal({doc.key + "=" + wrong});
        // model.moe.x alone makes a section in which required keys are missing: its own problem must be there too.
        BOOST_TEST(message.find("--set " + doc.key + ": ") != std::string::npos);
      }
    }
  }
}

// Catches: overrides of lists, nulls, sections and repeated keys that do not take the place of the file's value.
BOOST_AUTO_TEST_CASE(overrides) {
  auto config = parse(kMinimal, {"data.files=[x, y]", "train.steps=3", "train.steps=5", "checkpoint={interval: 7}",
                                 "checkpoint.keep_every=null", "optimizer.betas=[0.5, 0]", "parallel.strategy=hfsdp"});
  BOOST_TEST((config.data.files == std::vector<std::string>{"x", "y"}));
  BOOST_TEST(config.train.steps == 5);
  BOOST_TEST(config.checkpoint.interval == 7);
  BOOST_TEST(!config.checkpoint.keep_every.has_value());
  BOOST_TEST(config.optimizer.beta1 == 0.5);
  BOOST_TEST(config.optimizer.beta2 == 0.0);
  BOOST_TEST((config.parallel.strategy == Strategy::Hfsdp));
  // An override may put right what the file has wrong, and take experts away.
  BOOST_TEST(parse(with("train", "steps: many"), {"train.steps=4"}).train.steps == 4);
  BOOST_TEST(!parse(kMoe, {"model.moe=null"}).model.moe.has_value());
}

// Catches: a text on the command line that YAML cuts, unwraps or refuses: what follows the first `=` is the value. And
// quotes, null and values that are no texts, which mean what they mean in the file.
BOOST_AUTO_TEST_CASE(a_text_is_what_follows_the_equals_sign) {
  auto name = [](const std::string& value) { return parse(kMinimal, {"run.name=" + value}).run.name; };
  for (const std::string text :
       {"exp #3", "#3",     "a: b",  "a:",      ": a",     "*.txt", "&a",     "!a b",   "%a",  "@a",  "`a`",
        "{a: 1}", "[1, 2]", "a=b",   "- a",     "? a",     "| a",   "> a",    "7",      "010", "1e3", "yes",
        "true",   " a ",    "a\\tb", "it's #3", "a \"b\"", "---",   "<<: *a", "ünï #x", "a, b"}) {
    BOOST_TEST(name(text) == text);
  }
  BOOST_TEST(name("\"a #3\"") == "a #3");
  BOOST_TEST(name("'it''s #3'") == "it's #3");
  BOOST_TEST(name(" \"null\" ") == "null");
  BOOST_TEST(parse(kMinimal, {"run.dir=/data/exp #3"}).run.dir == "/data/exp #3");
  auto moe = parse(kMoe, {"regression.record_routing=a #3"});
  BOOST_TEST(moe.regression.record_routing.value() == "a #3");
  for (const std::string null : {"null", "~", "", " "}) {
    BOOST_TEST(!parse(kMoe, {"regression.record_routing=a", "regression.record_routing=" + null})
                    .regression.record_routing.has_value());
    BOOST_TEST(refusal({"run.name=" + null}).find("--set run.name: has no value") != std::string::npos);
  }
  BOOST_TEST(refusal({"run.name=\"\""}).find("is empty; expected a text") != std::string::npos);
  for (const std::string torn : {"\"a", "'a", "\"a\" b", "\"a\" #3", "'a' #"}) {
    BOOST_TEST(refusal({"run.name=" + torn}).find("--set run.name: ") != std::string::npos, torn);
  }
  // Elsewhere YAML would cut the value off at a comment sign.
  for (const std::string cut : {"train.steps=5 #3", "data.files=[a] #3", "data.files=[a #3]", "data.files=[a, 'b' #3]",
                                "parallel.strategy=fsdp #", "run={name: a #3}", "train.max_minutes=#3"}) {
    BOOST_TEST(refusal({cut}).find("would cut the value off") != std::string::npos, cut);
  }
  auto kept = parse(kMinimal, {"data.files=[\"a #3\", 'it''s #4', a#5, it's]", "train.steps= 5 "});
  BOOST_TEST((kept.data.files == std::vector<std::string>{"a #3", "it's #4", "a#5", "it's"}));
  BOOST_TEST(kept.train.steps == 5);
  // In a file a text is YAML: what is a number or a yes there must be quoted.
  for (const std::string wrong : {"7", "yes", "0x1F", "{a: 1}", "[1]", "~"}) {
    BOOST_CHECK_THROW(parse(kMinimal + "run: {name: " + wrong + "}\n"), ConfigError);
  }
}

// Catches: an enum with a value that no word stands for, or a word that is read as another value.
BOOST_AUTO_TEST_CASE(every_word_is_read_as_it_is_written) {
  auto check = [](auto value) {
    auto words = all_words(value);
    BOOST_TEST(words.size() >= 2u);
    for (auto word : words) {
      YamlNode node;
      node.kind = YamlNode::Kind::Scalar;
      node.text = word;
      BOOST_TEST(!read_value(node, {}, value));
      BOOST_TEST(write_value(value, {}) == word);
    }
    BOOST_TEST(std::set(words.begin(), words.end()).size() == words.size());
  };
  check(Strategy{});
  check(Dtype{});
  check(MoeConfig::Scoring{});
  check(AuxLossConfig::Type{});
  check(InitConfig::Device{});
  check(TrainConfig::Checkpointing{});
  check(OptimizerConfig::Type{});
  check(LrScheduleConfig::Type{});
  check(DataConfig::Type{});
  check(DataConfig::OnChange{});
  check(CheckpointConfig::OnError{});
  check(HealthConfig::OnNonfinite{});
  check(CommConfig::Backend{});
}

// Catches: anchors, aliases and merge keys that are lost, or a merged key that beats a written one.
BOOST_AUTO_TEST_CASE(aliases_and_merge_keys) {
  auto config = parse(with("train", "steps: &n 12") +
                      "lr_schedule: &s {warmup_steps: *n, type: cosine}\nhealth: {interval: *n}\n");
  BOOST_TEST(config.lr_schedule.warmup_steps == 12);
  BOOST_TEST(config.health.interval == 12);
  config = parse(kMinimal +
                 "checkpoint: &c {interval: 5}\nlogging: {<<: *c, per_layer: true}\nhealth: {<<: *c, interval: 6}\n");
  BOOST_TEST(config.logging.interval == 5);
  BOOST_TEST(config.health.interval == 6);
}

// Catches: a shipped config that is not valid for the ranks it is meant for.
BOOST_AUTO_TEST_CASE(shipped_configs_are_valid) {
  auto quick = load_config(kConfigs / "quickstart.yaml", {}, 4);
  BOOST_TEST(quick.accumulation_steps(4) == 1);
  BOOST_TEST((quick.parallel.strategy == Strategy::Hsdp));
  for (int ranks : {1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16}) {
    BOOST_TEST(load_config(kConfigs / "llama3_8b.yaml", {"parallel.dp_outer=1"}, ranks).parallel.dp_shard == ranks);
  }
  auto large = load_config(kConfigs / "llama3_70b.yaml", {}, 1024);
  BOOST_TEST(large.parallel.dp_shard == 64);
  BOOST_TEST(large.model.head_dim == 128);
  BOOST_TEST(large.accumulation_steps(1024) == 1);
}

// Catches: a missing file or a folder that ends in anything but a ConfigError with its name.
BOOST_AUTO_TEST_CASE(files_that_cannot_be_read) {
  auto says = [](const std::filesystem::path& file, const std::string& text) {
    BOOST_CHECK_EXCEPTION(load_config(file, {}, 1), ConfigError, [&](const ConfigError& error) {
      return std::string(error.what()) == "config error: 1 problem in " + file.string() + "\n  " + text;
    });
  };
  says("nowhere/run.yaml", "run.yaml: cannot be read (No such file or directory); expected a YAML file");
  says(kConfigs, "configs: is a folder; expected a YAML file");
}
