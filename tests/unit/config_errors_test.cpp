// What the configuration refuses, with the exact place and the way out.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "unit/config_text.h"

using namespace meshard;
using namespace meshard::testing;

namespace {

std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {}, int ranks = 4) {
  try {
    parse_config(text, "configs/run.yaml", overrides, ranks);
  } catch (const ConfigError& error) {
    BOOST_TEST(error.code() == kExitUsage);
    return error.what();
  }
  return "accepted";
}

// Each text has one problem, which is said on this line.
struct Case {
  std::string text;
  std::string line;
};

void check_all(const std::vector<Case>& cases, int ranks = 4) {
  for (auto& c : cases) {
    BOOST_TEST(refusal(c.text, {}, ranks) == "config error: 1 problem in configs/run.yaml\n  run.yaml:" + c.line);
  }
}

// The minimal config with experts; `moe` is appended to its keys.
std::string with_moe(const std::string& moe, const std::string& parallel = "strategy: fsdp") {
  auto text = with("parallel", parallel);
  return text.insert(text.find("data:"), "  moe: {n_routed_experts: 8, moe_intermediate_size: 32" + moe + "}\n");
}

}  // namespace

// Catches: an unknown or duplicate key that is passed over, or a suggestion that is no help.
BOOST_AUTO_TEST_CASE(keys) {
  check_all({
      {with("parallel", "dp_shrad: 2"), "16:3  parallel.dp_shrad: unknown key; did you mean `dp_shard`?"},
      {with("parallel", "lr: 2"), "16:3  parallel.lr: unknown key; did you mean `optimizer.lr`?"},
      {with("parallel", "zebra: 2"), "16:3  parallel.zebra: unknown key; the nearest valid key is `expert`"},
      {kMinimal + "trian: {steps: 3}\n", "17:1  trian: unknown key; did you mean `train`?"},
      {kMinimal + "steps: 3\n", "17:1  steps: unknown key; did you mean `train.steps`?"},
      {with("train", "seq_len: 16\n  seq_len: 8"),
       "15:3  train.seq_len: duplicate key; first given at line 14; keep one"},
      {kMinimal + "train: {steps: 3}\n", "17:1  train: duplicate key; first given at line 11; keep one"},
  });
}

// Catches: a value of another type that is taken all the same, or a number that readers of YAML differ on.
BOOST_AUTO_TEST_CASE(types) {
  check_all({
      {with("train", "steps: many"), "12:10  train.steps: `many` is not what this key takes; expected an integer >= 1"},
      {with("train", "steps: 010"),
       "12:10  train.steps: `010` is a number that YAML readers take differently; expected an integer >= 1, in "
       "plain decimal"},
      {with("train", "steps: 0x10"),
       "12:10  train.steps: `0x10` is a number that YAML readers take differently; expected an integer >= 1, in "
       "plain decimal"},
      {with("train", "steps: 1_000"),
       "12:10  train.steps: `1_000` is a number that YAML readers take differently; expected an integer >= 1, "
       "in plain decimal"},
      {with("train", "steps: \"8\""),
       "12:10  train.steps: the text \"8\" is not what this key takes; expected an integer >= 1"},
      {with("train", "steps: 1e3"), "12:10  train.steps: `1e3` is not what this key takes; expected an integer >= 1"},
      {with("train", "steps:"),
       "12:3  train.steps: has no value; expected an integer "
       ">= 1"},
      {with("model", "use_qk_norm: yes"),
       "4:16  model.use_qk_norm: `yes` is not what this key takes; expected true or false"},
      {with("model", "rope_theta: .inf"),
       "4:15  model.rope_theta: `.inf` is a number that YAML readers take differently; expected a number > 0, in "
       "plain decimal"},
      {with("data", "files: a.txt"),
       "10:10  data.files: `a.txt` is not what this key takes; expected a list of texts, like [a, b]"},
      {with("data", "files: [a.txt, 7]"),
       "10:10  data.files: entry 2 of the list: `7` is not a text in YAML; expected a text; if it is meant, "
       "quote it: \"7\""},
      {with("parallel", "strategy: hspd"),
       "16:13  parallel.strategy: `hspd` is not known; expected one of ddp, zero1, zero2, fsdp, hsdp, hfsdp; "
       "did you mean `hsdp`?"},
      {kMinimal + "health: 7\n", "17:9  health: is a section; expected keys below it, like `key: value`"},
      {kMinimal + "optimizer: {betas: [0.9]}\n",
       "17:20  optimizer.betas: the list has 1 entries; expected a list of two numbers, each in [0, 1)"},
  });
}

// Catches: a value out of range that gets past its key.
BOOST_AUTO_TEST_CASE(ranges) {
  check_all({
      {with("train", "steps: 0"), "12:10  train.steps: 0 is out of range; expected an integer >= 1"},
      {with("train", "steps: 99999999999999999999"),
       "12:10  train.steps: 99999999999999999999 is too large; expected an integer >= 1, at most 2147483647"},
      {with("train", "steps: 2147483648"),
       "12:10  train.steps: 2147483648 is too large; expected an integer >= 1, at most 2147483647"},
      {with("train", "seq_len: 18446744073709551616"),
       "14:12  train.seq_len: 18446744073709551616 is too large; expected an integer in [1, 16777216]"},
      {kMinimal + "run: {seed: 18446744073709551616}\n",
       "17:13  run.seed: 18446744073709551616 is too large; expected an integer >= 0, at most 18446744073709551615"},
      {kMinimal + "run: {seed: -18446744073709551616}\n",
       "17:13  run.seed: -18446744073709551616 is out of range; expected an integer >= 0"},
      {kMinimal + "optimizer: {lr: 1e-400}\n",
       "17:17  optimizer.lr: 1e-400 is nearer to 0 than a 64-bit number can be (4.9e-324); expected a number > 0"},
      {kMinimal + "optimizer: {weight_decay: 1e-400}\n",
       "17:27  optimizer.weight_decay: 1e-400 is nearer to 0 than a 64-bit number can be (4.9e-324); expected a number "
       ">= 0"},
      {kMinimal + "optimizer: {lr: 1e400}\n",
       "17:17  optimizer.lr: 1e400 is larger than a 64-bit number can be (1.8e308); expected a number > 0"},
      {kMinimal + "optimizer: {lr: 0.0e-400}\n",
       "17:17  optimizer.lr: 0.0e-400 is out of range; expected a number > 0"},
      {kMinimal + "optimizer: {betas: [0.9, 1.0]}\n",
       "17:20  optimizer.betas: entry 2 of the list: 1.0 is out of range; expected a number in [0, 1)"},
      {kMinimal + "optimizer: {lr: -1.0e-3}\n", "17:17  optimizer.lr: -1.0e-3 is out of range; expected a number > 0"},
      {kMinimal + "comm: {timeout_s: 0}\n", "17:19  comm.timeout_s: 0 is out of range; expected an integer >= 1"},
      {with("data", "validation_fraction: 1"),
       "10:24  data.validation_fraction: 1 is out of range; expected a number in [0, 1)"},
      {"schema: 2" + kMinimal.substr(9), "1:9  schema: schema 2 is not known to this version; expected 1"},
      {kMinimal + "precision: {param: fp16}\n",
       "17:20  precision.param: `fp16` is not supported: its range needs loss scaling; expected fp32 or bf16"},
      {kMinimal + "precision: {main_param: bf16}\n",
       "17:25  precision.main_param: `bf16` is not supported: this version keeps fp32 main weights; expected "
       "fp32"},
  });
}

// Catches: a key that must be given, and is not.
BOOST_AUTO_TEST_CASE(missing) {
  check_all({
      {kMinimal.substr(10), "2:1  schema: missing; expected integer 1: version of this format"},
      {without(kMinimal, "seq_len"),
       "11:1  train.seq_len: missing; expected integer [1, 16777216]: tokens per sequence"},
      {without(kMinimal, "files"), "9:1  data.files: missing; type text needs a list of files or globs"},
      {with("data", "files: []"), "10:10  data.files: is empty; type text needs a list of files or globs"},
  });
}

// Catches: a mesh or batch that does not fit the ranks.
BOOST_AUTO_TEST_CASE(mesh_and_batch) {
  check_all({
      {with("parallel", "dp_outer: 3"),
       "16:13  parallel.dp_outer: 3 does not divide the 4 ranks of this run; use 1, 2 or 4"},
      {with("parallel", "dp_outer: 2\n  dp_shard: 3"),
       "17:13  parallel.dp_shard: dp_outer 2 x dp_shard 3 = 6, but this run has 4 ranks; use dp_shard: 2 or "
       "auto, or start 6"},
      {with("parallel", "expert: 2"),
       "16:11  parallel.expert: 2 needs experts, and this model is dense (no model.moe); use 1"},
      {with("train", "global_batch_size: 30\n  micro_batch_size: 4"),
       "13:22  train.global_batch_size: 30 is not a multiple of micro_batch_size 4 x 4 ranks = 16; nearest: 16, "
       "32"},
      {with("train", "global_batch_size: 1"),
       "13:22  train.global_batch_size: 1 is not a multiple of micro_batch_size 1 x 4 ranks = 4; nearest: 4"},
  });
}

// Catches: two keys that are fine each but not together.
BOOST_AUTO_TEST_CASE(contradictions) {
  check_all({
      {with("model", "num_key_value_heads: 3"),
       "4:24  model.num_key_value_heads: 3 does not divide the 4 attention heads; use 1, 2 or 4"},
      {with("model", "hidden_size: 130"),
       "5:16  model.hidden_size: 130 is not a multiple of num_attention_heads 4; change one, or give "
       "model.head_dim"},
      {with("model", "head_dim: 7"),
       "4:13  model.head_dim: 7 is odd; rotary embeddings turn pairs: expected an even head_dim"},
      {with("model", "hidden_size: 132"),
       "7:24  model.num_attention_heads: head_dim = hidden_size 132 / 4 heads = 33 is odd; rotary embeddings "
       "turn pairs: expected an even head_dim"},
      {with("model", "partial_rotary_factor: 0.1"),
       "4:26  model.partial_rotary_factor: int(head_dim 32 x 0.1) = 3 dimensions would be rotated; expected an "
       "even number > 0"},
      {with("model", "max_position_embeddings: 8"),
       "15:12  train.seq_len: 16 is more than model.max_position_embeddings 8; expected at most that"},
      {with("model", "vocab_size: 256"),
       "4:15  model.vocab_size: 256 is too small for text data: 256 bytes and the end-of-document id 256; "
       "expected >= 257"},
      {kMinimal + "lr_schedule: {warmup_steps: 11}\n",
       "17:29  lr_schedule.warmup_steps: 11 is more than train.steps 10; expected at most that"},
      {kMinimal + "lr_schedule: {min_lr: 1.0}\n",
       "17:23  lr_schedule.min_lr: 1 is above optimizer.lr 0.0003; expected at most that"},
      {with("train", "eval_interval: 5", with("data", "validation_fraction: 0.0")),
       "10:24  data.validation_fraction: 0 holds nothing out, but train.eval_interval is 5; give a fraction, or "
       "eval_interval: 0"},
      {kMinimal + "run: {name: a/b}\n",
       "17:13  run.name: `a/b` cannot be the name of a folder; expected a name without `/`"},
      {kMinimal + "lr_schedule: {type: wsd, warmup_steps: 6, decay_steps: 5}\n",
       "17:56  lr_schedule.decay_steps: warmup_steps 6 + decay_steps 5 is more than train.steps 10; expected at "
       "most that"},
  });
}

// Catches: routing that cannot work (moe/DESIGN.md section 1), found at the first step instead of here.
BOOST_AUTO_TEST_CASE(mixture_of_experts) {
  check_all({
      {with_moe(", n_group: 3"),
       "9:66  model.moe.n_group: 3 groups do not divide the 8 routed experts; use 1, 2, 4 or 8"},
      {with_moe(", n_group: 8, topk_group: 8"),
       "9:66  model.moe.n_group: 8 groups of 8 routed experts have 1 each; a group's score is the sum of its best two: "
       "expected n_group <= 4"},
      {with_moe(", n_group: 2, topk_group: 3"),
       "9:81  model.moe.topk_group: 3 groups cannot be kept of 2; expected topk_group <= n_group"},
      {with_moe(", n_group: 4, topk_group: 1, num_experts_per_tok: 3"),
       "9:105  model.moe.num_experts_per_tok: a token cannot go to 3 experts where 2 can be chosen (topk_group 1 x 2 "
       "experts of a group); expected at most 2"},
      {with_moe(", num_experts_per_tok: 9"),
       "9:78  model.moe.num_experts_per_tok: a token cannot go to 9 experts where 8 can be chosen (topk_group 1 x 8 "
       "experts of a group); expected at most 8"},
      {with_moe(", scoring_func: softmax, n_group: 2, topk_group: 2"),
       "9:89  model.moe.n_group: 2 groups need sigmoid scores; use n_group: 1 with scoring_func softmax"},
      {with_moe(", scoring_func: softmax, expert_bias: {enabled: true}"),
       "9:103  model.moe.expert_bias.enabled: an expert bias needs sigmoid scores; use false with scoring_func "
       "softmax, or scoring_func: sigmoid"},
      {with_moe(", first_k_dense_replace: 2"),
       "9:80  model.moe.first_k_dense_replace: 2 leaves no layer of the 2 with experts; expected at most 1"},
      {with_moe(", aux_loss: {coeff: 0.1}"),
       "9:75  model.moe.aux_loss.coeff: 0.1 has no effect with type none; choose type switch or sequence, or 0.0"},
      {with_moe(", capacity_factor: 0"),
       "9:74  model.moe.capacity_factor: 0 is out of range; expected a number in (0, 1000000] or null"},
      {with_moe(", n_routed_expert: 4"),
       "9:57  model.moe.n_routed_expert: unknown key; did you mean `n_routed_experts`?"},
      {with_moe("", "expert: 3"),
       "17:11  parallel.expert: 3 does not divide the 4 ranks of this run nor the 8 routed experts; use 1, 2 or 4"},
      {with_moe(", n_shared_experts: 1", "expert: 16"),
       "17:11  parallel.expert: 16 does not divide the 4 ranks of this run nor the 8 routed experts; use 1, 2 or 4"},
      {with("model", "moe: {n_routed_experts: 4}"),
       "4:3  model.moe.moe_intermediate_size: missing; expected integer >= 1: width of one expert's SwiGLU"},
  });
}

// Catches: problems that hide one another; a header that miscounts; an order other than the file's.
BOOST_AUTO_TEST_CASE(all_problems_at_once) {
  BOOST_TEST(refusal(R"(schema: 1
model: {vocab_size: 264, hidden_size: 128, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 64}
data: {files: [a.txt]}
parallel:
  dp_shrad: 2
  expert: 3
train:
  steps: 10
  seq_len: 16
  global_batch_size: 30
  micro_batch_size: 4
)",
                     {"train.seq_len=no"}) ==
             R"(config error: 4 problems in configs/run.yaml
  run.yaml:5:3  parallel.dp_shrad: unknown key; did you mean `dp_shard`?
  run.yaml:6:11  parallel.expert: 3 needs experts, and this model is dense (no model.moe); use 1
  run.yaml:10:22  train.global_batch_size: 30 is not a multiple of micro_batch_size 4 x 4 ranks = 16; nearest: 16, 32
  --set train.seq_len: `no` is not what this key takes; expected an integer in [1, 16777216])");
}

// Catches: an override that escapes the checks of the file, or is reported as the file's fault.
BOOST_AUTO_TEST_CASE(overrides_are_checked) {
  auto refused = [](const std::string& assignment, const std::string& line) {
    BOOST_TEST(refusal(kMinimal, {assignment}) == "config error: 1 problem in configs/run.yaml\n  --set " + line);
  };
  refused("train.steps=0", "train.steps: 0 is out of range; expected an integer >= 1");
  refused("train.stesp=5", "train.stesp: unknown key; did you mean `steps`?");
  refused("parralel.expert=1", "parralel.expert: unknown key; did you mean `parallel.expert`?");
  refused("train.steps", "train.steps: is not an assignment; expected `--set section.key=value`");
  refused("", "'': is not an assignment; expected `--set section.key=value`");
  refused("=3", "=3: is not an assignment; expected `--set section.key=value`");
  refused("data.files=[a", "data.files: not valid YAML: end of sequence flow not found");
  refused("data.files=a", "data.files: `a` is not what this key takes; expected a list of texts, like [a, b]");
  refused("model.moe={n_routed_experts: 2}",
          "model.moe: model.moe.moe_intermediate_size: missing; expected integer >= 1: width of one expert's SwiGLU");
  refused("optimizer={lr: 1, lr: 2}", "optimizer: optimizer.lr: duplicate key; keep one");
  refused("train.steps=null", "train.steps: has no value; expected an integer >= 1");
}

// Catches: broken YAML that is half read, or reported without its place.
BOOST_AUTO_TEST_CASE(malformed_documents) {
  check_all({
      {"", "1:1  the file is empty; expected `schema: 1` and sections of keys"},
      {"# nothing\n", "1:1  the file is empty; expected `schema: 1` and sections of keys"},
      {"[1, 2]\n", "1:1  expected `schema: 1` and sections of keys"},
      {"schema: 1\ntrain: {steps: 3\n", "3:1  not valid YAML: end of map flow not found"},
      {"schema: 1\n\ttrain: 3\n", "2:1  a tab indents this line; YAML takes only spaces there"},
      {"schema: 1\nmodel:\n\tvocab_size: 260\n", "3:1  a tab indents this line; YAML takes only spaces there"},
      {"schema: 1\nmodel:\n  \tvocab_size: 260\n  hidden_size: 8\n",
       "3:3  a tab indents this line; YAML takes only spaces there"},
      {with("train", "steps: 3\n\tseq_len: 3"), "13:1  a tab indents this line; YAML takes only spaces there"},
      {"schema: *one\n",
       "1:9  not valid YAML: the referenced anchor is not defined; a text that begins with `*` needs quotes, like "
       "\"*.txt\""},
      {kMinimal + "---\nschema: 1\n", "18:1  a second YAML document (`---`); expected one per file"},
      {with("train", "steps: !!int 3"),
       "12:10  train.steps: the YAML tag `tag:yaml.org,2002:int` is not allowed here; write the plain value"},
      {with("train", "[a]: 3"), "12:3  train: a key here is not a plain word; expected `key: value`"},
  });
  // An alias that contains itself is cut, not followed.
  BOOST_TEST(refusal(kMinimal + "run: &r {name: x, dir: *r}\n")
                 .find("nested more than 32 levels deep; is there an alias that contains itself?") !=
             std::string::npos);
}

// Catches: nesting that ends in a crash, or in words that do not name it.
BOOST_AUTO_TEST_CASE(deep_nesting_is_named) {
  for (auto& [open, close] : {std::pair{"[", "]"}, {"{a: ", "}"}}) {
    for (int depth : {40, 400, 700, 20'000}) {
      std::string text = "schema: ";
      for (int i = 0; i < depth; ++i) text += open;
      for (int i = 0; i < depth; ++i) text += close;
      auto message = refusal(text + "\n");
      BOOST_TEST(message.find("\n  run.yaml:1:") != std::string::npos, message);
      BOOST_TEST(message.find("levels deep") != std::string::npos, message);
    }
  }
}

// Catches: text that is not UTF-8 and is taken, wherever it stands: the first save would die of it. Columns count
// bytes.
BOOST_AUTO_TEST_CASE(text_that_is_not_utf8) {
  const std::string utf8 = "; write the text in UTF-8";
  check_all({
      {kMinimal + "run: {name: caf\xe9}\n", "17:16  byte 0xe9 is not UTF-8" + utf8},
      {kMinimal + "run: {name: \"caf\xe9\"}\n", "17:17  byte 0xe9 is not UTF-8" + utf8},
      {with("data", "files: [\xc3\xa9.txt, \xff.txt]"), "10:19  byte 0xff is not UTF-8" + utf8},
      {with("train", "st\x80ps: 3"), "12:5  byte 0x80 is not UTF-8" + utf8},
      {kMinimal + "# \xed\xa0\x80\n", "17:3  byte 0xed is not UTF-8" + utf8},  // half a surrogate pair
      {kMinimal + "# \xc0\xaf\n", "17:3  byte 0xc0 is not UTF-8" + utf8},      // overlong
      {kMinimal + "# \xe2\x82", "17:3  byte 0xe2 is not UTF-8" + utf8},        // cut short
      {"\xff\xfes\0c\0", "1:1  byte 0xff is not UTF-8" + utf8},                // UTF-16
  });
  for (const std::string key : {"run.name", "data.files", "train.steps", "run"}) {
    BOOST_TEST(refusal(kMinimal, {key + "=a\xe9"}) == "config error: 1 problem in configs/run.yaml\n  --set " + key +
                                                          ": byte 0xe9 is not UTF-8" + utf8 +
                                                          " (column 2 of the value)");
  }
  BOOST_TEST(refusal(kMinimal, {"run.n\xe9me=a"}).find("unknown key") != std::string::npos);
}

// Catches: control characters, at some of which yaml-cpp stops reading, in silence; and a name that ends at a NUL.
BOOST_AUTO_TEST_CASE(control_characters) {
  const std::string refused = " is a control character, which YAML does not take; take it out";
  auto with_byte = [&](char byte) { return kMinimal + "comm: {timeout_s: 10" + byte + "}\n"; };
  check_all({
      {with_byte('\0'), "17:21  byte 0x00 (NUL)" + refused},
      {with_byte('\x04'), "17:21  byte 0x04" + refused},  // the end of a text, for yaml-cpp
      {with_byte('\x1b'), "17:21  byte 0x1b" + refused},
      {with_byte('\x7f'), "17:21  byte 0x7f" + refused},
      {kMinimal + "run: {name: \"a\\0b\"}\n",
       "17:13  run.name: holds the character NUL, which no name can; expected a text"},
      // The batch scripts read the run's folder out of a line of `plan`.
      {kMinimal + "run: {name: \"a\\nb\"}\n",
       "17:13  run.name: holds the control character \\x0a; expected a text of one line"},
      {kMinimal + "run: {dir: \"a\\x1b[2J\"}\n",
       "17:12  run.dir: holds the control character \\x1b; expected a text of one line"},
      {kMinimal + "\"run\\n  ok: all is well\": 1\n",
       "17:1  run\\n  ok: all is well: unknown key; the nearest valid key is `run.name`"},
  });
  BOOST_TEST(refusal(kMinimal + "\x04" + "trian: 3\n").find("0x04") != std::string::npos);
  BOOST_TEST(refusal(kMinimal + "comm:\t{timeout_s:\t10}\r\n") == "accepted");
}

// Catches: an unknown key, or a value, that is looked at for half a minute or printed whole; a list of problems that
// nobody can read. 50,000 keys took 23 s, for which a second is enough.
BOOST_AUTO_TEST_CASE(many_or_endless_problems) {
  auto begin = std::clock();  // what the machine does besides does not count
  std::string text = kMinimal;
  for (int i = 0; i < 50'000; ++i) text += "unknown_key_" + std::to_string(i) + ": 1\n";
  auto message = refusal(text);
  BOOST_TEST(message.starts_with("config error: 50000 problems in configs/run.yaml\n  run.yaml:17:1  unknown_key_0: "));
  BOOST_TEST(message.ends_with("\n  and 49950 more"));
  BOOST_TEST(std::ranges::count(message, '\n') == 51);
  const std::string endless(1'000'000, 'a');
  for (auto& long_text : {refusal(kMinimal + endless + ": 1\n"), refusal(with("train", "steps: " + endless)),
                          refusal(with("parallel", "strategy: " + endless)), refusal(kMinimal, {endless + "=1"}),
                          refusal(kMinimal, {"train.steps=" + endless})}) {
    BOOST_TEST(long_text.size() < 1000u);
    BOOST_TEST(long_text.find("1 problem") != std::string::npos);
  }
  BOOST_TEST(std::clock() - begin < 10 * CLOCKS_PER_SEC);
}

// Catches: a value of a hundred thousand characters that overflows the stack instead of being refused.
BOOST_AUTO_TEST_CASE(endless_values) {
  auto digits = std::string(200'000, '7');
  BOOST_TEST(refusal(with("train", "steps: " + digits)).find("train.steps: ") != std::string::npos);
  BOOST_TEST(refusal(with("train", "max_grad_norm: 0." + digits)).find("train.max_grad_norm: ") != std::string::npos);
}
