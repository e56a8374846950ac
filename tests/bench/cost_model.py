#!/usr/bin/env python3
"""The cost model against this machine: for each number of ranks `preflight --write-hardware`, then each mesh's predicted
and measured step, in turn. Steps are medians of the slowest rank's time, the first ones left out.

  tests/bench/cost_model.py [--meshard build/meshard] [--steps 12] [--rounds 2] [--quiet-s 60]

Exit 0 if every prediction is within 25 % and the order of every pair of meshes that are more than 10 % apart is right.
"""
import argparse, itertools, json, os, pathlib, statistics, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = pathlib.Path("tests/bench")
OUT = pathlib.Path("build/bench/cost_model")
WITHIN, APART = 0.25, 0.10
SKIP = 3
ENV = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

# name, config, ranks, settings; 8 sequences of 256 tokens a rank and microbatch
MESHES = [
    ("dense, 1 rank", "dense.yaml", 1, {"parallel.strategy": "ddp", "train.global_batch_size": 8}),
    ("dense, zero1, 2 ranks", "dense.yaml", 2, {"parallel.strategy": "zero1", "train.global_batch_size": 16}),
    ("dense, fsdp, 2 ranks, full recomputation", "dense.yaml", 2,
     {"parallel.strategy": "fsdp", "train.global_batch_size": 16, "train.activation_checkpoint": "full"}),
    ("dense, hsdp 2 x 2", "dense.yaml", 4,
     {"parallel.strategy": "hsdp", "parallel.dp_outer": 2, "train.global_batch_size": 32}),
    ("experts, fsdp, 2 ranks, expert 2", "moe.yaml", 2,
     {"parallel.strategy": "fsdp", "parallel.expert": 2, "train.global_batch_size": 16}),
    ("experts, zero2, 4 ranks, two microbatches", "moe.yaml", 4,
     {"parallel.strategy": "zero2", "train.global_batch_size": 64}),
]


def call(options, ranks, *words):
    command = [options.meshard, *map(str, words)]
    if ranks > 1 or words[0] == "preflight":
        head = ["mpirun", "-n", str(ranks), "--bind-to", "none"]
        if ranks > (os.cpu_count() or 1):
            head += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        command = head + command
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def sets(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def predicted(options, config, ranks, settings, hardware):
    out = call(options, 1, "plan", BENCH / config, "--ranks", ranks, "--timeline", "--json", "--hardware", hardware,
               *sets(settings))
    return json.loads(out)["timeline"]


def measured(options, config, ranks, settings):
    settings = {**settings, "train.steps": options.steps, "lr_schedule.warmup_steps": 0}
    call(options, ranks, "train", BENCH / config, "--run-dir", OUT / "run", "--overwrite", *sets(settings))
    lines = [json.loads(line) for line in open(OUT / "run" / "metrics.jsonl")]
    return [line["step_ms"]["max"] / 1e3 for line in lines if "step_ms" in line][SKIP:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meshard", default=str(ROOT / "build/meshard"))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2, help="preflights and runs of each mesh")
    parser.add_argument("--quiet-s", type=int, default=60, help="longest wait for a quiet machine; 0: do not wait")
    options = parser.parse_args()
    (ROOT / OUT).mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)

    times = {name: ([], []) for name, *_ in MESHES}
    for _ in range(options.rounds):
        for ranks in sorted({mesh[2] for mesh in MESHES}):
            if options.quiet_s:
                subprocess.run([sys.executable, BENCH / "peer" / "bench.py", "quiet", str(options.quiet_s)],
                               stderr=subprocess.DEVNULL)
            hardware = OUT / f"hardware_{ranks}.yaml"
            call(options, ranks, "preflight", "--config", BENCH / "dense.yaml", "--set", "run.threads=1", "--set",
                 f"train.global_batch_size={8 * ranks}", "--seconds", 3, "--write-hardware", hardware)
            for name, config, count, settings in MESHES:
                if count != ranks:
                    continue
                step = predicted(options, config, ranks, settings, hardware)
                times[name][0].append(step["step_s"])
                times[name][1].extend(measured(options, config, ranks, settings))

    print(f"{'mesh':<44} {'predicted':>10} {'measured':>10} {'ratio':>7}")
    rows, failed = [], 0
    for name, (guesses, seconds) in times.items():
        guess, real = statistics.median(guesses), statistics.median(seconds)
        rows.append((name, guess, real))
        wrong = abs(guess / real - 1) > WITHIN
        failed += wrong
        print(f"{name:<44} {1e3 * guess:>7.0f} ms {1e3 * real:>7.0f} ms {guess / real:>7.2f}"
              f"{'  NOT within ' + format(WITHIN, '.0%') if wrong else ''}")
    pairs = 0
    for (a, guess_a, real_a), (b, guess_b, real_b) in itertools.combinations(rows, 2):
        if max(real_a, real_b) < (1 + APART) * min(real_a, real_b):
            continue
        pairs += 1
        if (guess_a < guess_b) != (real_a < real_b):
            failed += 1
            print(f"WRONG ORDER: {a} and {b}")
    print(f"{len(rows)} meshes, {pairs} pairs more than {APART:.0%} apart: "
          f"{'all as predicted' if not failed else f'{failed} not as predicted'}")
    (OUT / "results.json").write_text(json.dumps([{"mesh": n, "predicted_s": g, "measured_s": r} for n, g, r in rows]) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
