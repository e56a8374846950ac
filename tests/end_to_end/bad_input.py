#!/usr/bin/env python3
"""Bad input is refused before anything starts: exit code 2, said once, with its place and the way out."""
import json
import os
import pathlib
import re
import shutil
import struct
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import (BINARY, SOURCE, TINY, Metrics, Run, case, expect, main, meshard, mpirun, read_bytes, says_once,
                     scratch, sets, train_command, training)
from routing import write_routing

SHORT = {"train.steps": 2, "train.eval_interval": 0}
MOE = "configs/tests/moe.yaml"


def config_with(*changes, base=TINY):
    """A copy of a config with text replaced."""
    text = (SOURCE / base).read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = scratch("config.yaml")
    path.write_text(text)
    return path


def place_of(path, changed, wrong):
    """line:column of `wrong` where it last occurs in `changed`, a part of the file. Both count from 1."""
    text = path.read_text()
    before = text[:text.index(changed) + changed.rindex(wrong)]
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def refused(name, patterns, config=TINY, values=None, ranks=2, options=(), code=2):
    folder = scratch("run")
    run = training(folder, ranks, config, values, options)
    expect(f"{name}: exit code {code}", run.code == code, run)
    for pattern in patterns:
        expect(f"{name}: says once /{pattern}/", says_once(run, pattern), run)
    expect(f"{name}: nothing was trained", not Metrics(folder).steps, run)
    return run


@case
def config_errors():
    """Catches: an error without its place or remedy, printed by every rank, or one at a time."""
    cases = [   # what, line of tiny.yaml, what it becomes, where in it the error lies, message
        ("unknown key", "  dp_outer: 1", "  dp_outre: 1", "dp_outre",
         r"parallel\.dp_outre: unknown key; did you mean `dp_outer`\?"),
        ("wrong type", "  steps: 20", "  steps: many", "many", r"train\.steps: `many`.*expected an integer"),
        ("octal", "  seq_len: 16", "  seq_len: 010", "010",
         r"train\.seq_len: `010` is a number that YAML readers take differently"),
        ("out of range", "  lr: 1.0e-3", "  lr: -1.0e-3", "-1.0e-3",
         r"optimizer\.lr: -1\.0e-3 is out of range; expected a number > 0"),
        ("unknown word", "  strategy: fsdp", "  strategy: fdsp", "fdsp",
         r"parallel\.strategy: `fdsp`.*did you mean `fsdp`\?"),
        ("duplicate key", "  seq_len: 16", "  seq_len: 16\n  seq_len: 8", "seq_len: 8",
         r"train\.seq_len: duplicate key"),
        ("odd head_dim", "  num_attention_heads: 4", "  num_attention_heads: 4\n  head_dim: 7", "7",
         r"model\.head_dim: 7 is odd"),
        ("indivisible batch", "  global_batch_size: 12", "  global_batch_size: 13", "13",
         r"train\.global_batch_size: 13 is not a multiple of .* 2 ranks = 2; nearest: 12, 14"),
        ("indivisible mesh", "  dp_outer: 1", "  dp_outer: 3", "3",
         r"parallel\.dp_outer: 3 does not divide the 2 ranks of this run; use 1 or 2"),
        ("a mesh unlike the ranks", "  dp_shard: auto", "  dp_shard: 4", "4",
         r"parallel\.dp_shard: dp_outer 1 x dp_shard 4 = 4, but this run has 2 ranks"),
        ("broken YAML", "  dp_outer: 1", "  dp_outer: [1", "", r"not valid YAML"),
    ]
    for name, line, changed, wrong, pattern in cases:
        config = config_with((line, changed))
        place = rf"{config.name}:{place_of(config, changed, wrong)}" if wrong else rf"{config.name}:\d+:\d+"
        refused(name, [place + r"\s+" + pattern], config)
    many = config_with(("dp_outer: 1", "dp_outre: 1"), ("steps: 20", "steps: many"), ("seq_len: 16", "seq_len: 0"))
    refused("three errors", ["config error: 3 problems in ", "dp_outre", "`many`", "seq_len: 0 is out of range"], many)
    refused("a bad override", [r"--set train\.stpes: .*did you mean `(train\.)?steps`\?"], values={"train.stpes": 3})
    refused("an override of the wrong type", [r"--set train\.steps: `x`"], values={"train.steps": "x"})
    refused("no such config", [r"nothing\.yaml: cannot be read \(No such file"], scratch("nothing.yaml"))
    refused("a folder as config", [r"is a folder"], SOURCE)


@case
def data_errors():
    """Catches: data that is missing or damaged and found late, or without the file's name."""
    text = {**SHORT, "data.type": "text"}
    missing, empty, short = scratch("missing.txt"), scratch("empty.txt"), scratch("short.txt")
    empty.write_text("")
    short.write_text("no")
    refused("missing data file", [r"--set data\.files: cannot open " + re.escape(str(missing))],
            values={**text, "data.files": f"[{missing}]"})
    fine = scratch("fine.txt")
    fine.write_text("long enough " * 100)
    entries = f"  type: text\n  files: [{fine}, {missing}]"
    config = config_with(("  type: synthetic", entries))
    refused("a missing file of the config", [
        rf"{config.name}:{place_of(config, entries, str(missing))}  data\.files: cannot open " + re.escape(str(missing))],
        config)
    refused("empty data", [re.escape(str(empty)) + " is empty"], values={**text, "data.files": f"[{empty}]"})
    refused("short data", [re.escape(str(short)) + " is too short"], values={**text, "data.files": f"[{short}]"})
    folder = scratch("folder")
    folder.mkdir()
    refused("a folder as data", [re.escape(str(folder)) + " is a folder"], values={**text, "data.files": f"[{folder}]"})
    plain = scratch("plain.txt.gz")
    plain.write_text("plain text" * 100)
    refused("text as .gz", [re.escape(str(plain)) + " is not a gzip file"], values={**text, "data.files": f"[{plain}]"})
    prefix = indexed_corpus([5, 6, 7] * 200 + [999] + [1] * 100)
    run = refused("a token beyond the vocabulary", [r"999"],
                  values={**SHORT, "train.steps": 20, "data.type": "indexed", "data.files": f"[{prefix}]"})
    expect("it names the file and the offset",
           re.search(re.escape(prefix.name) + r".*\b(600|1200)\b", run.err + run.out), run)
    refused("no .idx", [r"lonely\.idx"], values={**SHORT, "data.type": "indexed", "data.files": f"[{lonely_bin()}]"})


def indexed_corpus(tokens):
    """A Megatron .bin/.idx pair of one document of 16-bit tokens; its prefix."""
    prefix = scratch("corpus")
    prefix.with_suffix(".bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2)
    prefix.with_suffix(".idx").write_bytes(index + struct.pack("<iqqq", len(tokens), 0, 0, 1))
    return prefix


def lonely_bin():
    path = scratch("lonely.bin")
    path.write_bytes(bytes(100))
    return path


@case
def launches():
    """Catches: a run of another shape than intended that trains nevertheless."""
    refused("--expect-ranks", [r"this run has 2 ranks, not the 4 of --expect-ranks"], options=("--expect-ranks", 4))
    run = training(scratch("run"), 2, values=SHORT, options=("--expect-ranks", 2))
    expect("--expect-ranks that holds: exit code 0", run.code == 0, run)

    if not pathlib.Path("/dev/nvidia0").exists():  # whether the backend is built in or not
        refused("nccl without a device", [r"no CUDA device: use comm\.backend mpi"], values={**SHORT, "comm.backend": "nccl"})

    run = Run(train_command(scratch("run"), values=SHORT), env={"SLURM_STEP_NUM_TASKS": "2"}).wait()
    expect("srun without PMI: exit code 2", run.code == 2, run)
    expect("srun without PMI: the right command is shown", "mpirun -n 2 meshard" in run.err, run)

    other = config_with(("lr: 1.0e-3", "lr: 2.0e-3"))
    folder = scratch("run")
    two = [*mpirun(1, train_command(folder, values=SHORT)), ":", "-n", 1, *train_command(folder, other, SHORT)]
    run = Run(two).wait()
    expect("ranks with different configs: exit code 2", run.code == 2, run)
    expect("ranks with different configs: said once", says_once(run, r"(?i)config.*differ|differ.*config"), run)
    expect("ranks with different configs: the rank is named", re.search(r"rank\w* 1\b", run.err + run.out), run)


@case
def command_line():
    """Catches: a usage error with an exit code of its own, or help without examples."""
    for name, words in (("unknown option", ["train", TINY, "--frobnicate"]), ("no subcommand", []),
                        ("unknown subcommand", ["trian", TINY]), ("no config", ["train"]),
                        ("a word for a number", ["train", TINY, "--expect-ranks", "two"]),
                        ("an unknown way to resume", ["train", TINY, "--run-dir", scratch("run"), "--resume", "maybe"]),
                        ("weights from nowhere", ["train", TINY, "--run-dir", scratch("run"), "--init-from", "maybe"])):
        run = meshard(*words)
        expect(f"{name}: exit code 2 and a message", run.code == 2 and (run.err + run.out).strip() != "", run)
    for written, meant in (("trian", "train"), ("inpsect", "inspect"), ("--verson", "--version")):
        run = meshard(written, TINY)
        expect(f"{written}: {meant} is suggested", run.code == 2 and says_once(run, f"did you mean `{meant}`"), run)
    run = meshard("plan", TINY, "--rank", 1)
    expect("--rank: --ranks is suggested", run.code == 2 and says_once(run, "did you mean `--ranks`"), run)
    run = Run(mpirun(2, [BINARY, "train", TINY, "--frobnicate"])).wait()
    expect("unknown option on 2 ranks: exit code 2", run.code == 2, run)
    expect("unknown option on 2 ranks: said once", says_once(run, "--frobnicate(?!.*meshard train)"), run)

    for words in (["--help"], ["train", "--help"], ["plan", "--help"]):
        run = meshard(*words)
        expect(f"{' '.join(words)}: exit code 0", run.code == 0, run)
        expect(f"{' '.join(words)}: has examples", re.search(r"(?i)example", run.out) and "meshard" in run.out, run)
    run = meshard("--version")
    expect("--version: exit code 0", run.code == 0, run)
    for word in ("meshard", "LibTorch", "Open MPI", "yaml-cpp", "CLI11", "fmt", "json", "zlib", "mpi"):
        expect(f"--version names {word}", word in run.out, run)


@case
def text_that_is_not_utf8():
    """Catches: text that no JSON takes, in a config, an override or an option: every save of the run would die of it."""
    config = scratch("latin1.yaml")
    config.write_bytes((SOURCE / TINY).read_bytes().replace(b"name: tiny", b"name: caf\xe9"))
    refused("a name in Latin-1", [r"latin1\.yaml:\d+:12  byte 0xe9 is not UTF-8"], config)
    sweep = scratch("sweep.yaml")
    sweep.write_bytes(b"schema: 1\nbase: configs/tests/tiny.yaml\ngrid: {data.files: [[caf\xe9]]}\n")
    run = meshard("sweep", sweep, "--out", scratch("sweep"), "--dry-run")
    expect("a sweep's value: exit code 2 and the place", run.code == 2 and says_once(run, r"sweep\.yaml:3:25  byte 0xe9"),
           run)
    latin1 = os.fsdecode(b"caf\xe9")
    for words in (("--set", f"run.name={latin1}"), ("--run-dir", scratch("runs") / latin1), ("--init-from", latin1),
                  ("--resume", latin1)):
        ranks = 2 if words[0] == "--set" else 1
        run = Run(mpirun(ranks, [BINARY, "train", TINY, *words])).wait()
        expect(f"{words[0]}: exit code 2, the argument and the byte, said once",
               run.code == 2 and says_once(run, r"argument 4, `.*caf\\xe9`: byte 0xe9 at column \d+ is not UTF-8"), run)


@case
def weights_of_another_model():
    """Catches: a Hugging Face folder's weights in a model that is not the one of its config.json."""
    folder = scratch("hf")
    folder.mkdir()
    fields = {"model_type": "llama", "vocab_size": 260, "hidden_size": 16, "num_hidden_layers": 2,
              "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 24, "rms_norm_eps": 1e-5,
              "max_position_embeddings": 64}
    config = scratch("hand.yaml")
    config.write_text("""schema: 1
model: {vocab_size: 260, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 24}
train: {steps: 1, global_batch_size: 4, seq_len: 16}
data: {type: synthetic}
""")
    for changed, patterns in (
            ({"rms_norm_eps": 0.1, "rope_theta": 5.0},
             [r"hf is of another model", r"model\.rms_norm_eps: 0\.1 in config\.json, 1\.0e-05 now",
              r"model\.rope_theta: 5\.0 in config\.json, 10000\.0 now"]),
            ({"hidden_act": "gelu"}, [r"hf/config\.json\n  config\.json  `hidden_act: \"gelu\"` cannot be honoured"]),
            ({"model_type": "mistral"}, [r"model_type `mistral` is not known"])):
        (folder / "config.json").write_text(json.dumps({**fields, **changed}))
        ranks = 2 if "hidden_act" in changed else 1
        refused(f"--init-from, {changed}", patterns, config, ranks=ranks, options=("--init-from", folder))
    run = meshard("eval", folder, "--config", config)
    expect("eval: exit code 2, said once", run.code == 2 and says_once(run, r"model_type `mistral` is not known"), run)


@case
def experts():
    """Catches: a mixture of experts that cannot be, found late or put down to another key."""
    cases = [   # what, line of moe.yaml, what it becomes, where in it the error lies, message, ranks
        ("expert and the ranks", "  expert: 1", "  expert: 4", "4",
         r"parallel\.expert: 4 does not divide the 2 ranks of this run; use 1 or 2", 2),
        ("expert and both", "  expert: 1", "  expert: 3", "3",
         r"parallel\.expert: 3 does not divide the 2 ranks of this run nor the 8 routed experts; use 1 or 2", 2),
        ("more experts than there are", "    num_experts_per_tok: 2", "    num_experts_per_tok: 9", "9",
         r"model\.moe\.num_experts_per_tok: a token cannot go to 9 experts where 8 can be chosen .*at most 8", 1),
        ("more experts than the kept groups have", "    num_experts_per_tok: 2",
         "    n_group: 4\n    num_experts_per_tok: 3", "3",
         r"model\.moe\.num_experts_per_tok: a token cannot go to 3 experts where 2 can be chosen .*at most 2", 1),
        ("groups that do not divide", "  moe:", "  moe:\n    n_group: 3", "3",
         r"model\.moe\.n_group: 3 groups do not divide the 8 routed experts; use 1, 2, 4 or 8", 1),
        ("groups of one expert", "  moe:", "  moe:\n    topk_group: 2\n    n_group: 8", "8",
         r"model\.moe\.n_group: 8 groups of 8 routed experts have 1 each.*expected n_group <= 4", 1),
        ("more groups kept than there are", "  moe:", "  moe:\n    n_group: 2\n    topk_group: 3", "3",
         r"model\.moe\.topk_group: 3 groups cannot be kept of 2; expected topk_group <= n_group", 1),
        ("a bias on softmax", "    expert_bias: {update_rate: 1.0e-3}",
         "    scoring_func: softmax\n    expert_bias: {enabled: true}", "true",
         r"model\.moe\.expert_bias\.enabled: an expert bias needs sigmoid scores; use false", 1),
        ("groups on softmax", "  moe:", "  moe:\n    scoring_func: softmax\n    n_group: 2", "2",
         r"model\.moe\.n_group: 2 groups need sigmoid scores; use n_group: 1", 1),
        ("a negative rate", "update_rate: 1.0e-3", "update_rate: -1.0e-3", "-1.0e-3",
         r"model\.moe\.expert_bias\.update_rate: -1\.0e-3 is out of range; expected a number in \[0, 1000000\]", 1),
        ("a negative coefficient", "coeff: 1.0e-2", "coeff: -1.0e-2", "-1.0e-2",
         r"model\.moe\.aux_loss\.coeff: -1\.0e-2 is out of range; expected a number in \[0, 1000000\]", 1),
        ("a negative z-loss", "    z_loss_coeff: 1.0e-3", "    z_loss_coeff: -1.0e-3", "-1.0e-3",
         r"model\.moe\.z_loss_coeff: -1\.0e-3 is out of range; expected a number in \[0, 1000000\]", 1),
        ("experts without width", "    moe_intermediate_size: 24", "    moe_intermediate_size: 0", "0",
         r"model\.moe\.moe_intermediate_size: 0 is out of range; expected an integer >= 1", 1),
        ("no layer with experts", "    first_k_dense_replace: 1", "    first_k_dense_replace: 3", "3",
         r"model\.moe\.first_k_dense_replace: 3 leaves no layer of the 3 with experts; expected at most 2", 1),
        ("a coefficient of no loss", "{type: sequence, coeff: 1.0e-2}", "{coeff: 1.0e-2}", "1.0e-2",
         r"model\.moe\.aux_loss\.coeff: 0\.01 has no effect with type none; choose type switch or sequence", 1),
        ("an unknown key", "    n_shared_experts: 1", "    n_shared_expert: 1", "n_shared_expert",
         r"model\.moe\.n_shared_expert: unknown key; did you mean `n_shared_experts`\?", 1),
        ("an unknown loss", "type: sequence", "type: sequenze", "sequenze",
         r"model\.moe\.aux_loss\.type: `sequenze`.*did you mean `sequence`\?", 1),
        ("an unknown fault", "health:", "regression: {fault: count_in_evil}\n\nhealth:", "count_in_evil",
         r"regression\.fault: `count_in_evil`.*did you mean `count_in_eval`\?", 1),
        ("recording and replaying", "health:", "regression: {record_routing: a, replay_routing: b}\n\nhealth:", "b}",
         r"regression\.replay_routing: a run cannot record its routing and replay another's; give one of the two", 1),
    ]
    for name, line, changed, wrong, pattern, ranks in cases:
        config = config_with((line, changed), base=MOE)
        refused(name, [rf"{config.name}:{place_of(config, changed, wrong)}\s+" + pattern], config, ranks=ranks)
    refused("expert and the experts", [r"--set parallel\.expert: 2 does not divide the 7 routed experts; use 1"], MOE,
            {"parallel.expert": 2, "model.moe.n_routed_experts": 7})
    many = {"parallel.expert": 4, "model.moe.n_group": 3, "model.moe.first_k_dense_replace": 3,
            "model.moe.aux_loss.type": "none", "regression.fault": "nonne"}
    refused("five errors on two ranks", [
        "config error: 5 problems in ", r"--set parallel\.expert: 4 does", r"--set model\.moe\.n_group: 3 groups",
        r"--set model\.moe\.first_k_dense_replace: 3 leaves", r"moe\.yaml:\d+:\d+\s+model\.moe\.aux_loss\.coeff: ",
        r"--set regression\.fault: .*did you mean `none`\?"], MOE, many)
    run = meshard("plan", MOE, "--ranks", 2, *sets(many))
    expect("plan refuses the same", run.code == 2 and "5 problems" in run.err and run.out == "", run)


@case
def experts_of_a_dense_model():
    """Catches: a setting for experts that a dense model passes over."""
    for key, value, pattern in (("parallel.expert", 2, "2 needs experts, and this model is dense .*; use 1"),
                                ("regression.fault", "count_in_eval", "needs mixture-of-experts layers"),
                                ("regression.record_routing", "a", "needs mixture-of-experts layers"),
                                ("regression.replay_routing", "a", "needs mixture-of-experts layers")):
        refused(f"{key} of a dense model", [rf"--set {re.escape(key)}: {pattern}"], values={key: value}, ranks=1)
    section = "regression: {fault: no_outer_reduce}\n\ncomm:"
    config = config_with(("comm:", section))
    place = place_of(config, section, "no_outer_reduce")
    pattern = rf"{config.name}:{place}\s+regression\.fault: needs mixture-of-experts layers"
    refused("a fault of a dense model", [pattern], config, ranks=1)


@case
def routing_files():
    """Catches: a routing file that does not fit, found when an earlier run's results are gone, told by every rank, or
    without its name."""
    folder = scratch("used")
    run = training(folder, 2, MOE, SHORT)
    expect("a run that is to survive: exit code 0", run.code == 0, run)
    before = (folder / "metrics.jsonl").read_bytes()
    text, missing = scratch("text.routing"), scratch("missing.routing")
    text.write_text("no routing" * 1000)
    short = scratch("short.routing")
    short.write_text("meshard routing 1")
    other = write_routing(scratch("other") / "top3.routing", lambda position, token: (0, 1, 2), 32, top_k=3)
    for name, key, file, pattern in (
            ("a missing routing file", "replay", missing, r"missing\.routing.*No such file"),
            ("a folder as routing file", "replay", missing.parent, r"is no regular file"),
            ("text as routing file", "replay", text, r"text\.routing is not a routing file.*record_routing"),
            ("a routing file without header", "replay", short, r"short\.routing is not a routing file.*record_routing"),
            ("another model's routing file", "replay", other, r"top3\.routing.*top_k 3 in the file, 2 in this run"),
            ("recording into no folder", "record", scratch("nothing") / "a.routing", r"a\.routing.*there is no folder")):
        run = training(folder, 2, MOE, {**SHORT, f"regression.{key}_routing": file}, ("--overwrite",))
        expect(f"{name}: exit code 2", run.code == 2, run)
        expect(f"{name}: says once /{pattern}/", says_once(run, pattern), run)
        kept = read_bytes(folder / "metrics.jsonl") == before
        expect(f"{name}: the earlier run is untouched", kept, run)
        (folder / "metrics.jsonl").write_bytes(before)

    few = write_routing(scratch("few") / "few.routing", lambda position, token: (token % 8, (token + 3) % 8), 32)
    folder = scratch("run")
    run = training(folder, 2, MOE, {**SHORT, "train.steps": 4, "regression.replay_routing": few})
    expect("too few recorded steps: exit code 2", run.code == 2, run)
    expect("too few recorded steps: said once, with file, steps and way out",
           says_once(run, r"few\.routing.*train\.steps can be at most 2.*record a longer run"), run)


@case
def nothing_held_out():
    """Catches: evaluations that are asked for and left out in silence; an earlier run's results lost for such a run."""
    text = scratch("text") / "short.txt"
    text.parent.mkdir()
    text.write_text("too short for a window at its end " * 8)   # 5 % of it
    values = {**SHORT, "train.eval_interval": 1, "data.type": "text", "data.files": f"[{text}]"}
    folder = scratch("used")
    run = training(folder, 1, values={**values, "train.eval_interval": 0})
    expect("without evaluation: exit code 0", run.code == 0, run)
    run = training(folder, 1, values=values, options=("--overwrite",))
    expect("nothing held out: exit code 2", run.code == 2, run)
    pattern = r"nothing is held out: .*validation_fraction 0\.05 .*seq_len \+ 1 = 17 .*train\.eval_interval: 0"
    expect("nothing held out: said once, with the ways out", says_once(run, pattern), run)
    expect("nothing held out: the earlier run is untouched", Metrics(folder).ends[-1]["exit"] == 0, run)


@case
def run_folder():
    """Catches: a run that destroys or mixes with an earlier one unasked; a resolved config that cannot be run."""
    folder = scratch("run")
    run = training(folder, 2, values=SHORT)
    expect("first run: exit code 0", run.code == 0, run)
    before = (folder / "metrics.jsonl").read_bytes()
    run = training(folder, 2, values=SHORT)
    expect("used folder: exit code 2", run.code == 2, run)
    expect("used folder: said once, with the way out", says_once(run, r"--overwrite"), run)
    expect("used folder: nothing changed", (folder / "metrics.jsonl").read_bytes() == before, run)
    expect("used folder: no lock is left", not (folder / "lock").exists(), run)

    run = training(folder, 2, values={**SHORT, "train.steps": 3}, options=("--overwrite",))
    steps = [line["step"] for line in Metrics(folder).steps]
    expect("--overwrite: exit code 0, only the new run's lines", run.code == 0 and steps == [1, 2, 3], run)

    run = training(folder, 2, values={**SHORT, "train.steps": 3}, options=("--resume", "auto"))
    metrics = Metrics(folder)
    expect("--resume auto in a used folder: exit code 0", run.code == 0, run)
    expect("--resume auto: each step stands once", [line["step"] for line in metrics.steps] == [1, 2, 3],
           json.dumps([line.get("step", next(iter(line))) for line in metrics.lines]))
    expect("--resume auto: this start has its header and end", metrics.headers and metrics.ends[-1]["exit"] == 0, run)

    fresh = scratch("fresh")
    run = training(fresh, 2, values=SHORT, options=("--resume", "auto"))
    expect("--resume auto in a fresh folder: exit code 0", run.code == 0, run)
    run = training(scratch("run"), 2, values={**SHORT, "run.dir": scratch("parent"), "run.name": "a"})
    expect("--run-dir goes before run.dir", run.code == 0, run)
    parent = scratch("parent")
    run = Run([BINARY, "train", TINY, *sets({**SHORT, "run.dir": parent, "run.name": "a"})]).wait()
    expect("without --run-dir: run.dir/run.name", run.code == 0 and (parent / "a/metrics.jsonl").exists(), run)
    no_folder = config_with(("name: tiny", "name: a/b"))
    refused("a name with a slash", [r"run\.name: `a/b`"], no_folder)
    for name in ("", "/"):
        run = meshard("train", TINY, "--run-dir", name)
        expect(f"--run-dir '{name}': exit code 2, said once",
               run.code == 2 and says_once(run, f"`{name}` is no name of a run folder; give --run-dir"), run)

    unsaved = scratch("unsaved")
    training(unsaved, 1, values=SHORT)
    run = training(unsaved, 1, values=SHORT)
    expect("a used folder without a checkpoint: only --overwrite is proposed", run.code == 2 and "--overwrite" in run.err
           and "without a checkpoint" in run.err and "--resume" not in run.err, run)
    saving = {**SHORT, "checkpoint.interval": 1}
    training(unsaved, 1, values=saving, options=("--overwrite",))
    run = training(unsaved, 1, values=saving)
    expect("with one: both are", run.code == 2 and "--resume auto" in run.err and "--overwrite" in run.err, run)


@case
def recorded_run_folder():
    """Catches: a recorded config that names another folder than its own, where --overwrite empties another run."""
    home = scratch("home")
    home.mkdir()
    config = home / "run.yaml"
    config.write_text((SOURCE / TINY).read_text())
    values = sets({**SHORT, "checkpoint.interval": 1})

    def train(*words):
        return meshard("train", *words, cwd=home)

    first = train("run.yaml", *values)   # runs/tiny, which nothing below may touch
    before = (home / "runs/tiny/metrics.jsonl").read_bytes()
    for word, name in (("out/a", "out/a"), ("b", "./b"), ("c/", "./c"), (home / "d/x: #1", home / "d/x: #1")):
        folder = home / name
        run = train("run.yaml", *values, "--run-dir", word)
        expect(f"--run-dir {word}: it is there", run.code == 0 and (folder / "metrics.jsonl").exists(), run)
        plan = meshard("plan", folder / "config.yaml", "--ranks", 1, cwd=home)
        expect(f"--run-dir {word}: plan of its config shows it", f"run folder  {name}\n" in plan.out, plan)
        run = train(folder / "config.yaml", "--resume", "auto", "--set", "train.steps=3")
        expect(f"--run-dir {word}: its config goes on there, and nothing but the steps has changed",
               run.code == 0 and says_once(run, "resuming after step 2 ") and Metrics(folder).texts("step") == [1, 2, 3]
               and "run.dir" not in run.out and "run.name" not in run.out, run)
        run = train(folder / "config.yaml", "--overwrite")
        expect(f"--run-dir {word}: its config starts anew there", run.code == 0 and len(Metrics(folder).headers) == 1, run)
    (home / "out/a").rename(home / "moved")
    run = train("moved/config.yaml", "--run-dir", "moved", "--resume", "auto", "--set", "train.steps=4")
    expect("a moved folder goes on with --run-dir", run.code == 0 and says_once(run, "resuming after step 3 ")
           and "run.dir" not in run.out and "run.name" not in run.out, run)
    expect("the folder of run.dir/run.name is as it was",
           first.code == 0 and (home / "runs/tiny/metrics.jsonl").read_bytes() == before, first)


@case
def no_checkpoint():
    """Catches: commands that disagree on what a path is that is no checkpoint: asked for wrongly, exit code 2."""
    run_folder, empty, file = scratch("run"), scratch("empty"), scratch("file")
    training(run_folder, 1, values={**SHORT, "checkpoint.interval": 1})
    good = sorted((run_folder / "checkpoints").iterdir())[-1]
    empty.mkdir()
    file.write_text("text")
    partial = good.with_name("step-00000009.partial")
    shutil.copytree(good, partial)
    unfinished = scratch("unfinished")
    shutil.copytree(good, unfinished)
    (unfinished / ".metadata").unlink()
    config = run_folder / "config.yaml"
    for what, path in (("nothing", scratch("nothing")), ("an empty folder", empty), ("a file", file),
                       ("a save that never ended", partial), ("one without its index", unfinished)):
        for command in (("inspect", path), ("inspect", path, "--verify"), ("inspect", path, "--json"),
                        ("eval", path), ("eval", path, "--config", config), ("export", path, "--out", scratch("hf")),
                        ("export", path, "--out", scratch("hf"), "--config", config),
                        ("compare", path, good, "--checkpoints"), ("compare", good, path, "--checkpoints"),
                        ("train", config, "--run-dir", scratch("next"), "--resume", path),
                        ("train", config, "--run-dir", scratch("next"), "--init-from", path)):
            run = meshard(*command)
            name = " ".join([str(command[0]), *(str(word) for word in command[1:] if str(word).startswith("--"))])
            expect(f"{name} of {what}: exit code 2, once, with the path",
                   run.code == 2 and says_once(run, rf"{re.escape(str(path))}(:| is no)"), run)


main()
