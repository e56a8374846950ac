#!/usr/bin/env python3
"""configs/quickstart.yaml as a user runs it, cut to eight steps, and the first eighty of configs/quickstart_moe.yaml."""
import re
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import BINARY, SOURCE, Metrics, Run, Skip, case, expect, main, mpirun, scratch, sets

DATA = SOURCE / "build/data/jargon.txt.gz"
CUT = {"train.steps": 8, "train.eval_interval": 4, "train.eval_batches": 1, "lr_schedule.warmup_steps": 2,
       "logging.interval": 1}
STEP_KEYS = {"step", "tokens", "loss", "bits_per_byte", "grad_norm", "lr", "step_ms", "tokens_per_s", "tflops", "mfu",
             "mem_peak_bytes", "data_ms", "comm_ms", "comm_exposed_ms", "comm_busy_ms", "comm_bytes", "checkpoint_stall_ms", "nonfinite"}
HEADER_KEYS = {"versions", "mesh", "ranks", "config_hash", "model_hash"}
STEP_LINE = re.compile(r"step \d+/8 \| loss \d+\.\d{4} \| bpb \d+\.\d{3} \| norm \d+\.\d+ \| lr \d\.\de[-+]\d\d \| "
                       r"\d+ ms \| \d+(\.\d)?k? tok/s \| ETA (\d+:)?\d?\d:\d\d")


def run_quickstart():
    if not DATA.exists():
        raise Skip(f"{DATA.relative_to(SOURCE)} is missing: jobs/setup.sh puts it there")
    folder = scratch("quickstart")
    run = Run(mpirun(4, [BINARY, "train", "configs/quickstart.yaml", "--run-dir", folder, *sets(CUT)])).wait(400)
    expect("exit code 0", run.code == 0, run)
    return run, folder


@case
def quickstart():
    """Catches: a shipped config that does not train; metrics or output that scripts of users cannot read; a resolved
    config that gives another run."""
    run, folder = run_quickstart()
    metrics = Metrics(folder)
    losses = metrics.numbers("loss")
    expect("eight steps", [line["step"] for line in metrics.steps] == list(range(1, 9)), run)
    expect(f"the loss falls ({losses[0]:.3f} to {losses[-1]:.3f})", losses[-1] < losses[0] - 0.5, run)
    expect("it starts at that of a uniform guess (ln 264 = 5.58)", abs(losses[0] - 5.58) < 0.3, run)
    check_metrics(metrics, run)
    check_output(run, folder)
    run_again(folder, metrics)


def check_metrics(metrics, run):
    unlike = [sorted(set(line) ^ STEP_KEYS) for line in metrics.steps if set(line) != STEP_KEYS]
    expect("lines of steps have the documented keys", not unlike, unlike)
    first, last = metrics.steps[0], metrics.steps[-1]
    expect("tokens are counted", (first["tokens"], last["tokens"]) == (32 * 128, 8 * 32 * 128), run)
    expect("step_ms has min, median and max in order", all(
        set(line["step_ms"]) == {"min", "median", "max"}
        and float(line["step_ms"]["min"]) <= float(line["step_ms"]["median"]) <= float(line["step_ms"]["max"])
        for line in metrics.steps), run)
    expect("mfu is null where no peak is known", first["mfu"] is None, run)
    expect("comm_bytes by operation and axis",
           set(first["comm_bytes"]) == {"all_gather", "reduce_scatter", "all_reduce"}
           and set(first["comm_bytes"]["all_reduce"]["dp_outer"]) == {"count", "bytes"}, run)
    expect("nothing is not finite", all(line["nonfinite"] == [] for line in metrics.steps), run)
    expect("evaluations after steps 4 and 8", [line["step"] for line in metrics.evals] == [4, 8], run)
    header = metrics.headers[0]
    expect("the header has the documented keys", HEADER_KEYS <= set(header), sorted(header))
    expect("a line ends the run", metrics.lines[-1] == {"end": {"exit": 0, "step": 8, "reason": "done"}}, run)


def check_output(run, folder):
    lines = [line for line in run.out.splitlines() if line.startswith("step ")]
    expect("eight lines, as documented", len(lines) == 8 and all(STEP_LINE.fullmatch(line) for line in lines), run)
    for words in ("LibTorch", "dp_outer 2 x dp_shard 2", "hsdp", "rank 0-3", "parameters", "main weights", "optimizer"):
        expect(f"the start-up table has {words}", words in run.out, run)
    expect("nothing on standard error", run.err.strip() == "", run)
    log = (folder / "log.txt").read_text()
    expect("log.txt has what was printed", all(line in log for line in lines), run)
    left = sorted(path.name for path in folder.iterdir())
    expect("the run folder holds what is documented", set(left) <= {"config.yaml", "metrics.jsonl", "log.txt", "dump"},
           left)
    expect("the dump folder is empty", not any((folder / "dump").iterdir()), sorted((folder / "dump").iterdir()))


def run_again(folder, metrics):
    again = scratch("again")
    run = Run(mpirun(4, [BINARY, "train", folder / "config.yaml", "--run-dir", again])).wait(400)
    expect("config.yaml runs as it is: exit code 0", run.code == 0, run)
    expect("with the same losses", Metrics(again).texts("loss") == metrics.texts("loss"), run)
    old, new = ((place / "config.yaml").read_text().splitlines() for place in (folder, again))
    changed = {line.split(":")[0].strip() for pair in zip(old, new) if pair[0] != pair[1] for line in pair}
    expect("and the same resolved config, but for its folder", len(old) == len(new) and changed <= {"name", "dir"}, changed)


EIGHTY = {"train.steps": 80, "lr_schedule.decay_steps": 380, "train.eval_interval": 80}


@case
def mixture_of_experts():
    """Catches: experts that learn less than a dense model of the same width, that stay unbalanced or die. (The whole
    run is a part of the benchmark.)"""
    if not DATA.exists():
        raise Skip(f"{DATA.relative_to(SOURCE)} is missing: jobs/setup.sh puts it there")
    bits, metrics = {}, None
    for name in ("quickstart", "quickstart_moe"):
        folder = scratch(name)
        run = Run(mpirun(4, [BINARY, "train", f"configs/{name}.yaml", "--run-dir", folder, *sets(EIGHTY)])).wait(600)
        expect(f"{name}: exit code 0", run.code == 0, run)
        metrics = Metrics(folder)
        bits[name] = metrics.numbers("eval_bits_per_byte", metrics.evals)[-1]
    expect(f"after 80 steps {bits['quickstart_moe']:.3f} bits per byte, the dense model {bits['quickstart']:.3f}: at most "
           "2 % more", bits["quickstart_moe"] <= 1.02 * bits["quickstart"], run)
    layers = [line["moe"]["layers"] for line in metrics.steps]
    worst = [max(float(layer["max_vio"]) for layer in step) for step in layers]
    expect(f"max_vio falls ({worst[0]:.2f} to {worst[-1]:.2f})", worst[-1] < 0.5 * worst[0], run)
    expect("no expert is dead at the end", all(layer["dead"] == 0 for layer in layers[-1]), run)
    expect("every token reached two experts", all(layer["count_total"] == 32 * 128 * 2 for step in layers for layer in step),
           run)


main()
