#!/usr/bin/env python3
"""Meshard against the peer, in turn, on this machine: see run.sh.

Every pair is Meshard, then the peer, each on a quiet machine; medians over the pairs. A pair during which other processes
used more than 0.1 core is run again, up to twice as many pairs in all.
  tok/s       tokens of a step over all ranks / median over the steps (the first five left out) of the slowest rank's time
  memory      VmHWM, the largest of the ranks
  start-up    Meshard: the whole command of a one-step run, ending included. Peer: from launch to the end of the first step.
"""
import argparse, json, math, os, pathlib, platform, resource, statistics, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = pathlib.Path("tests/bench")
PEER = BENCH / "peer" / "bench.py"
OUT = pathlib.Path("build/bench")
TEXT = "build/data/jargon.txt.gz"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
STRATEGIES = {"ddp": 1, "zero1": 1, "zero2": 1, "fsdp": 1, "hsdp": 2, "hfsdp": 2}   # name -> dp_outer on 4 ranks
QUIET_CORES = 0.1
SKIP = 5


def busy_seconds():
    fields = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return sum(fields[i] for i in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


def timed(command, env=None):
    """Runs a command; returns its standard output, wall seconds and the cores that others used meanwhile."""
    before, busy, start = resource.getrusage(resource.RUSAGE_CHILDREN), busy_seconds(), time.perf_counter()
    done = subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True, text=True, cwd=ROOT,
                          stdin=subprocess.DEVNULL)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, wall, (busy_seconds() - busy - own) / wall


def wait_until_quiet(options):
    if options.quiet_s:
        subprocess.run([sys.executable, PEER, "quiet", str(options.quiet_s)], cwd=ROOT, stderr=subprocess.DEVNULL)


# ------------------------------------------------------------------------------------------------------------- Meshard
def mpirun(ranks):
    command = ["mpirun", "-n", str(ranks), "--bind-to", "none"]
    if ranks > (os.cpu_count() or 1):
        command += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    return command


def read_metrics(path):
    """The lines of steps, and the evaluations, of a metrics.jsonl."""
    lines = [json.loads(line) for line in open(path)]
    return [l for l in lines if "step_ms" in l], [l for l in lines if "eval_loss" in l]


def meshard(options, name, config, ranks, settings):
    run_dir = OUT / name
    command = mpirun(ranks) if ranks > 1 else []
    command = command + [options.meshard, "train", str(config), "--run-dir", str(run_dir), "--overwrite"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.getuid() == 0 else {}
    _, wall, others = timed(command, root)
    steps, evals = read_metrics(ROOT / run_dir / "metrics.jsonl")
    if not steps:
        sys.exit(f"{run_dir}/metrics.jsonl has no line with step_ms")
    timed_steps = steps[min(SKIP, len(steps) - 1):]
    slowest_ms = statistics.median(l["step_ms"]["max"] for l in timed_steps)
    tokens = (steps[-1]["tokens"] - steps[0]["tokens"]) / (len(steps) - 1) if len(steps) > 1 else steps[0]["tokens"]
    return {"tokens_per_s": 1000 * tokens / slowest_ms, "peak_mb": steps[-1]["mem_peak_bytes"] / 1e6, "start_up_s": wall,
            "other_cores": others, "loss": steps[-1]["loss"], "steps": steps, "evals": evals}


def plan(options, config, ranks, settings=None):
    command = [options.meshard, "plan", str(config), "--ranks", str(ranks), "--json"]
    for key, value in (settings or {}).items():
        command += ["--set", f"{key}={value}"]
    return json.loads(timed(command)[0])


# ---------------------------------------------------------------------------------------------------------------- peer
def peer(command):
    out, _, others = timed(command, {"OMP_NUM_THREADS": "1"} if "fsdp2" in command else None)
    line = json.loads(out.strip().splitlines()[-1])
    return {"tokens_per_s": line.get("tokens_per_s_quiet") or line.get("tokens_per_s"), "peak_mb": line.get("peak_rss_mb"),
            "start_up_s": line["startup_s"], "other_cores": others, "loss": line.get("final_loss")}


def peer_single(options, preset="bench"):
    return peer([sys.executable, PEER, "single", "--preset", preset, "--threads", "2", "--batch", "8",
                 "--steps", str(options.steps), "--text", TEXT])


def peer_fsdp2(options, ranks, replicate, preset="bench"):
    return peer([*TORCHRUN, str(ranks), str(PEER), "fsdp2", "--preset", preset, "--batch", "8",
                 "--replicate", str(replicate), "--steps", str(options.steps), "--text", TEXT])


def peer_start_up(options):
    return peer([sys.executable, PEER, "startup", "--mode", "fsdp2", "--world", "2", "--repeats", "1",
                 "--text", str(ROOT / TEXT)])


# -------------------------------------------------------------------------------------------------------------- pairs
def pairs(options, ours, theirs):
    """Runs both in turn until `repeats` pairs were quiet. Returns (list of ours, list of theirs, how many were quiet)."""
    quiet, noisy = [], []
    while len(quiet) < options.repeats and len(quiet) + len(noisy) < 2 * options.repeats:
        wait_until_quiet(options)
        a = ours()
        wait_until_quiet(options)
        b = theirs()
        (quiet if max(a["other_cores"], b["other_cores"]) < QUIET_CORES else noisy).append((a, b))
    best = quiet if len(quiet) >= options.repeats else quiet + noisy
    return [a for a, _ in best], [b for _, b in best], len(quiet)


class Table:
    def __init__(self):
        self.rows = []

    def add(self, what, ours, theirs, value, relation, target, note=""):
        met = value >= target if relation == ">=" else value <= target
        row = {"what": what, "meshard": ours, "peer": theirs, "value": round(value, 3), "relation": relation,
               "target": target, "met": bool(met), "note": note}
        self.rows.append(row)
        self.print_row(row)

    @staticmethod
    def print_row(row):
        peer_text = "" if row["peer"] is None else f"{row['peer']:.4g}"
        print(f"{row['what']:<44} {row['meshard']:>10.4g} {peer_text:>10} {row['value']:>8.3f} "
              f"{row['relation'] + ' ' + format(row['target'], 'g'):>9}  {'met' if row['met'] else 'NOT MET'}"
              f"{'  ' + row['note'] if row['note'] else ''}", flush=True)

    @staticmethod
    def print_head():
        print(f"{'figure':<44} {'Meshard':>10} {'peer':>10} {'ratio':>8} {'target':>9}")


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def compare_training(options, table, name, ranks, settings, theirs, target, config="dense.yaml"):
    label = f"{name}, {ranks} rank{'s' if ranks > 1 else ''}"
    settings = {**settings, "train.steps": options.steps}
    ours, others, quiet = pairs(options, lambda: meshard(options, name, BENCH / config, ranks, settings), theirs)
    note = "" if quiet >= options.repeats else f"only {quiet} of {len(ours)} pairs were quiet"
    a, b = median(ours, "tokens_per_s"), median(others, "tokens_per_s")
    table.add(f"{label}: tok/s", a, b, a / b, ">=", target, note)
    a, b = median(ours, "peak_mb"), median(others, "peak_mb")
    table.add(f"{label}: peak memory per rank, MB", a, b, a / b, "<=", 0.7)
    stated = plan(options, BENCH / config, ranks, settings)["bytes_per_rank"]["total"] / 1e6
    table.add(f"{label}: peak memory - plan's, MB", a, None, a - stated, "<=", 300, f"plan: {stated:.0f} MB")
    print(f"    final loss {ours[-1]['loss']:.4f}, peer {others[-1]['loss']:.4f} (other batches, other first weights)")
    return ours, others


# --------------------------------------------------------------------------------------------------------------- parts
def part_single(options, table):
    roof = json.loads(timed([sys.executable, BENCH / "peer" / "roof.py", "--threads", "2", "--batch", "8"])[0])
    print(f"    kernel bound, 2 threads: {roof['tokens_per_s']:.0f} tok/s")
    compare_training(options, table, "single", 1, {"run.threads": 2, "parallel.strategy": "ddp"},
                     lambda: peer_single(options), 1.05)


def part_fsdp(options, table):
    compare_training(options, table, "fsdp", 2, {"train.global_batch_size": 16}, lambda: peer_fsdp2(options, 2, 1), 1.08)


HSDP = {"train.global_batch_size": 32, "parallel.dp_outer": 2, "parallel.strategy": "hsdp"}


def part_hsdp(options, table):
    _, others = compare_training(options, table, "hsdp", 4, HSDP, lambda: peer_fsdp2(options, 4, 2), 1.15)
    one_step = {**HSDP, "train.steps": 1, "lr_schedule.warmup_steps": 0}
    ours = []
    for _ in range(options.repeats):
        wait_until_quiet(options)
        ours.append(meshard(options, "hsdp-start", BENCH / "dense.yaml", 4, one_step))
    a, b = median(ours, "start_up_s"), median(others, "start_up_s")
    table.add("dense hsdp, 4 ranks: start-up, s", a, b, a / b, "<=", 0.35)


def part_moe(options, table):
    one, _ = compare_training(options, table, "moe", 1, {"run.threads": 2, "parallel.strategy": "ddp"},
                              lambda: peer_single(options, "moe"), 1.15, "moe.yaml")
    cost = json.loads(timed([ROOT / "build/bench/routing_cost", "2"])[0])["ms"]
    layers, step = 3, 1000 * 8 * 256 / median(one, "tokens_per_s")
    table.add("moe: routing, sorting, moving rows, of a step", cost * layers, None, cost * layers / step, "<=", 0.1,
              f"{layers} x {cost:.2f} ms of {step:.0f} ms")
    compare_training(options, table, "moe, expert 2", 4, {"train.global_batch_size": 32, "parallel.expert": 2},
                     lambda: peer_fsdp2(options, 4, 1, "moe"), 1.3, "moe.yaml")


def part_startup(options, table):
    ours, others, _ = pairs(options, lambda: meshard(options, "tiny", BENCH / "tiny.yaml", 2, {}),
                            lambda: peer_start_up(options))
    a, b = median(ours, "start_up_s"), median(others, "start_up_s")
    table.add("tiny fsdp, 2 ranks: start-up, s", a, b, a / b, "<=", 0.3)


def part_plan(options, table):
    time_plan(options, table, "70B on 1,024 ranks", "configs/llama3_70b.yaml", 1024, 200)
    time_plan(options, table, "671B on 2,048 ranks", "configs/deepseek_v3_671b.yaml", 2048, 300)


def time_plan(options, table, what, config, ranks, megabytes):
    command = [options.meshard, "plan", config, "--ranks", str(ranks), "--json"]
    start = time.perf_counter()
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - start
    if status:
        sys.exit(f"{' '.join(command)} ended with status {status}")
    table.add(f"plan of {what}, s", wall, None, wall, "<=", 1.0)
    table.add(f"plan of {what}, MB", usage.ru_maxrss / 1e3, None, usage.ru_maxrss / 1e3, "<=", megabytes)


def part_wire(options, table):
    for strategy, outer in STRATEGIES.items():
        settings = {"parallel.strategy": strategy, "parallel.dp_outer": outer, "train.global_batch_size": 16,
                    "train.steps": 2}
        measured = meshard(options, f"wire-{strategy}", BENCH / "tiny.yaml", 4, settings)["steps"][-1]["comm_bytes"]
        stated = plan(options, BENCH / "tiny.yaml", 4, settings)["comm_per_step"]
        sent = {(op, axis): (v["count"], v["bytes"]) for op, axes in measured.items() for axis, v in axes.items()}
        expected = {(row["op"], row["axis"]): (row["count"], row["bytes"]) for row in stated}
        different = sorted(k for k in sent.keys() | expected.keys() if sent.get(k, (0, 0)) != expected.get(k, (0, 0)))
        total = sum(b for _, b in sent.values())
        table.add(f"wire, {strategy}, 4 ranks: rows unlike plan's", len(different), None, len(different), "<=", 0,
                  f"{total} bytes" + "".join(f"; {k}: {sent.get(k)}, plan {expected.get(k)}" for k in different))


def checkpoint_speed(options):
    folder = OUT / "checkpoint"
    folder.mkdir(exist_ok=True)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.getuid() == 0 else {}
    out, _, others = timed([*mpirun(2), ROOT / "build/bench/checkpoint_speed", BENCH / "checkpoint.yaml", folder, "5"], root)
    return {**json.loads(out.strip().splitlines()[-1]), "other_cores": others}


def peer_checkpoint(options):
    out, _, others = timed([*TORCHRUN, "2", str(PEER), "dcp", "--dir", str(OUT), "--text", TEXT], {"OMP_NUM_THREADS": "1"})
    line = json.loads(out.strip().splitlines()[-1])
    return {key: line["state_mb"] / line[f"{key}_mb_s"] for key in ("save", "load_cold", "load_warm")} | {"other_cores": others}


def part_checkpoint(options, table):
    ours, theirs, quiet = pairs(options, lambda: checkpoint_speed(options), lambda: peer_checkpoint(options))
    mb = ours[0]["bytes"] / 1e6
    note = f"{mb:.0f} MB, 2 ranks" + ("" if quiet >= options.repeats else f"; only {quiet} of {len(ours)} pairs were quiet")
    for key, what, target in (("save", "save", 1.5), ("load_cold", "load, cold", 2.0), ("load_warm", "load, warm", 2.0)):
        a, b = mb / median(ours, key), mb / median(theirs, key)
        table.add(f"checkpoint {what}: MB/s", a, b, a / b, ">=", target, note)
    save, write, stall, copy = (median(ours, key) for key in ("save", "plain_write", "stall", "copy"))
    table.add("checkpoint save: of a plain write + fsync", mb / save, mb / write, write / save, ">=", 0.75,
              "beside it: the plain write's MB/s")
    table.add("checkpoint, asynchronous: stall, of a save", stall, save, stall / save, "<=", 0.3,
              f"{stall / copy:.2f} x a plain copy")
    extra = median(ours, "extra_memory") / 1e6
    table.add("checkpoint save: memory beside the state, MB", extra, None, extra, "<=", 64)
    table.add("index of 100,000 chunks, written and read, s", median(ours, "index"), None, median(ours, "index"), "<=", 2)


def part_metrics(options, table):
    wait_until_quiet(options)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.getuid() == 0 else {}
    for what, more in (("", []), (", per_layer", ["per_layer"])):
        command = [*mpirun(2), ROOT / "build/bench/metrics_cost", BENCH / "tiny.yaml", OUT, *more]
        done = subprocess.run(command, env={**os.environ, **root}, capture_output=True, text=True, cwd=ROOT, check=True)
        cost = json.loads(done.stderr.strip().splitlines()[-1])["ms"]
        table.add(f"logging a step of 50 ms, 8 MoE layers{what}", cost, None, cost / 50, "<=", 0.005, "ms, 2 ranks")


def part_quickstart(options, table):
    bits = {}
    for name, minutes_allowed in (("quickstart", 3.0), ("quickstart_moe", 5.0)):
        wait_until_quiet(options)
        run = meshard(options, name, pathlib.Path(f"configs/{name}.yaml"), 4, {})
        minutes = run["start_up_s"] / 60
        bits[name] = run["evals"][-1]["eval_loss"] / math.log(2)
        note = "" if run["other_cores"] < QUIET_CORES else f"other processes used {run['other_cores']:.2f} cores"
        table.add(f"{name}: the whole run, minutes", minutes, None, minutes, "<=", minutes_allowed, note)
    dense, moe = bits["quickstart"], bits["quickstart_moe"]
    table.add("quickstart: held-out bits per byte", dense, None, dense, "<=", 2.75)
    table.add("quickstart_moe: bits per byte to the dense one's", moe, None, moe / dense, "<=", 1.02)


PARTS = {"single": part_single, "fsdp": part_fsdp, "hsdp": part_hsdp, "moe": part_moe, "startup": part_startup, "plan": part_plan,
         "wire": part_wire, "checkpoint": part_checkpoint, "metrics": part_metrics, "quickstart": part_quickstart}


def machine():
    model = next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "unknown CPU")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "commit": commit.strip() or "unknown",
            "date": time.strftime("%Y-%m-%d")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--quiet-s", type=int, default=300, help="longest wait for a quiet machine; 0: do not wait")
    parser.add_argument("--meshard", default=str(ROOT / "build/meshard"))
    options = parser.parse_args()
    unknown = [p for p in options.parts if p not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are: {' '.join(PARTS)}")
    os.chdir(ROOT)
    OUT.mkdir(parents=True, exist_ok=True)

    here, table = machine(), Table()
    print(f"{here['cpu']}, {here['cores']} cores; commit {here['commit']}; {here['date']}")
    table.print_head()
    for name in options.parts or PARTS:
        PARTS[name](options, table)
    print(f"{sum(r['met'] for r in table.rows)} of {len(table.rows)} targets met")
    (OUT / "results.json").write_text(json.dumps({"machine": here, "rows": table.rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
