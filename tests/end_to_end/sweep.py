#!/usr/bin/env python3
"""`meshard sweep`: every point once, whatever happens to the sweep; nothing is started that cannot run."""
import json
import os
import pty
import re
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import (BINARY, SOURCE, Metrics, Run, case, expect, main, processes, read_bytes, scratch, steps_logged,
                     train_command, until)

TINY = "configs/tests/tiny.yaml"
TWELVE = {"grid": {"optimizer.lr": [0.001, 0.002, 0.003], "optimizer.weight_decay": [0.0, 0.1]}, "seeds": [1, 2]}


def spec(parts, base=TINY):
    """A sweep's file; JSON is YAML."""
    path = scratch("sweep.yaml")
    path.write_text(json.dumps({"schema": 1, "base": str(base), **parts}))
    return path


def config(**values):
    """A base: tiny.yaml with values of train and checkpoint."""
    path, text = scratch("base.yaml"), (SOURCE / TINY).read_text()
    for key, value in values.items():
        text, count = re.subn(rf"^  {key}: [^\s#]+", f"  {key}: {value}", text, flags=re.M)
        assert count == 1, key
    path.write_text(text + "\ncheckpoint:\n  interval: 10\n")
    return path


def words(file, out, *options):
    return [BINARY, "sweep", file, "--out", out, *options]


def sweep(file, out, *options, env=None, limit=150):
    return Run(words(file, out, *options), env=env).wait(limit)


def names(out):
    """By index; none before the sweep has set its folder up."""
    return read_bytes(out / "points.txt").decode().split()


def finished(out):
    return [name for name in names(out) if b'"exit":0' in read_bytes(out / name / "metrics.jsonl")]


def running(out):
    """Points of which some steps are logged, and the end is not."""
    return [name for name in names(out) if steps_logged(out / name) > 1 and name not in finished(out)]


def started_and_stepping(folder, starts):
    text = read_bytes(folder / "metrics.jsonl")
    return text.count(b'{"header":') == starts and b'"loss":' in text.rsplit(b'{"header":', 1)[-1]


def kill_all(out):
    """What a machine that fails does: everything of the sweep at once."""
    for pid, command in processes():
        if str(out) in " ".join(command):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def expect_complete(out, steps, count):
    """Every point has every step once, and its end."""
    expect(f"{count} points", len(names(out)) == len(set(names(out))) == count, names(out))
    for name in names(out):
        metrics = Metrics(out / name)
        logged = [line["step"] for line in metrics.steps]
        expect(f"{name}: steps 1 to {steps}, each once", logged == list(range(1, steps + 1)), logged)
        expect(f"{name}: done", metrics.ends and metrics.ends[-1]["exit"] == 0, metrics.ends)


@case
def killed_and_continued():
    """Catches: a point that is lost, run twice, or begun anew although it had a checkpoint, when the sweep or the whole
    machine is killed in the middle; two sweeps that work in one folder."""
    steps, out = 60, scratch("out")
    file = spec(TWELVE, config(steps=steps, eval_interval=0))
    run = Run(words(file, out, "--jobs", 2))
    # mpirun, the ranks and launch.sh are all there, and one point at least is in the middle.
    until(lambda: len(finished(out)) >= 3 and running(out), 120, "three points and a half", run)
    second = sweep(file, out)
    expect("a second sweep in the folder: exit code 2", second.code == 2, second)
    expect("it names the owner", f"is locked by process {run.process.pid} on " in second.err, second)
    run.kill()
    first_done = finished(out)
    expect("killed: not all points are done", 3 <= len(first_done) < 12, first_done)

    # Its points still hold their folders: they are asked to stop, which takes a moment.
    run = Run(words(file, out, "--jobs", 2))
    until(lambda: len(finished(out)) >= 6 and running(out), 120, "six points and a half", run)
    kill_all(out)
    run.wait(30)
    expect("killed with all its processes: not all points are done", len(finished(out)) < 12, finished(out))

    run = sweep(file, out, "--jobs", 2)
    expect("third start: exit code 0", run.code == 0, run)
    expect_complete(out, steps, 12)
    starts = {name: len(Metrics(out / name).headers) for name in names(out)}
    expect("points that were done were not started again", all(starts[name] == 1 for name in first_done), starts)
    again = [name for name, count in starts.items() if count > 1]
    expect("those in the middle were started again", again, starts)
    expect("no lock is left", not list(out.glob("**/lock")), list(out.glob("**/lock")))
    if again:
        alone = scratch("alone")
        straight = Run(train_command(alone, out / again[0] / "point.yaml")).wait()
        expect(f"{again[0]}: the losses are those of a run that nobody killed, to the bit",
               Metrics(alone).texts("loss") == Metrics(out / again[0]).texts("loss"), straight)
    run = sweep(file, out)
    expect("once more: nothing to do, exit code 0", run.code == 0 and "0 of 12 points to run" in run.out, run)


@case
def stopped_in_order():
    """Catches: a stop that kills points, or counts them as failed; ranks that do not get through to mpirun."""
    out, file = scratch("out"), spec({"seeds": [1, 2, 3]}, config(steps=400, eval_interval=0))
    for starts, number in enumerate((signal.SIGTERM, signal.SIGINT), 1):
        run = Run(words(file, out, "--ranks", 2, "--jobs", 1))
        name = "seed=1"
        until(lambda: started_and_stepping(out / name, starts), 90, f"start {starts} of the first point, and a step", run)
        run.send(number)
        run.wait(60)
        expect(f"{number.name}: exit code 75", run.code == 75, run)
        expect(f"{number.name}: the point ended with 75", f"point {name}: preempted (exit 75)" in run.out, run)
        metrics = Metrics(out / name)
        expect(f"{number.name}: after a checkpoint", metrics.ends[-1]["exit"] == 75 and
               (out / name / f"checkpoints/step-{metrics.steps[-1]['step']:08}").is_dir(), metrics.ends)
        expect(f"{number.name}: no other point was started", len(list(out.glob("*/metrics.jsonl"))) == 1, run)
        expect(f"{number.name}: on 2 ranks", metrics.headers[-1]["ranks"] == 2, metrics.headers)
    run = sweep(file, out, "--ranks", 4)
    expect("another number of ranks: refused", run.code == 2 and "--ranks 2" in run.err, run)


@case
def failing_points():
    """Catches: a failed point that takes the others along, is hidden in the exit code, or is not tried again; a point
    that another machine runs started a second time."""
    text = scratch("text.txt")
    out, base = scratch("out"), config(steps=3, eval_interval=0)
    base.write_text(base.read_text().replace("type: synthetic", f"type: text\n  files: [{SOURCE}/README.md]"))
    file = spec({"list": [{}, {"data.files": [str(text)]}, {"run.seed": 2}]}, base)
    run = sweep(file, out, "--jobs", 1)
    broken = names(out)[1]
    expect("exit code 70", run.code == 70, run)
    expect("the failed point is named, with its log", f"failed (exit 2): see {out}/{broken}/job.log" in run.out, run)
    expect("its log says why", str(text) in (out / broken / "job.log").read_text(), run)
    expect("the others are done", finished(out) == ["base", "seed=2"], run)
    (out / broken / "lock").write_text(json.dumps({"host": "another-host", "pid": 1, "start": "1"}))
    run = sweep(file, out)
    expect("a point that another host runs is left alone, exit code 75",
           run.code == 75 and f"point {broken}: left alone, running: process 1 on another-host" in run.out, run)
    (out / broken / "lock").unlink()
    text.write_text("text " * 2000)
    run = sweep(file, out)
    expect("once its data is there it alone is run, exit code 0",
           run.code == 0 and "1 of 3 points to run" in run.out, run)
    expect_complete(out, 3, 3)


@case
def on_a_terminal():
    """Catches: a table that is not drawn, or lines that it overwrites."""
    out, file = scratch("out"), spec({"seeds": [1, 2]}, config(steps=3, eval_interval=0))
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(SOURCE)
        os.execv(BINARY, [str(word) for word in words(file, out, "--jobs", 1)])
    text = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            piece = b""
        if not piece:
            break
        text += piece
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    shown = text.decode()
    expect("exit code 0", code == 0, shown)
    expect("a table of what runs is drawn", "0/2 ended, 1 running" in shown and "seed=1  step" in shown, shown)
    expect("and drawn anew in its place", "\x1b[2A\x1b[J" in shown, shown)
    expect("ends are lines that stay", all(f"point seed={i}: done (exit 0) {i}/2" in shown for i in (1, 2)), shown)


@case
def changed_sweeps():
    """Catches: results of one sweep taken for another's; added points that move the old ones."""
    base, out = config(steps=2, eval_interval=0), scratch("out")
    run = sweep(spec({"seeds": [1, 2]}, base), out)
    expect("exit code 0", run.code == 0, run)
    run = sweep(spec({"seeds": [1, 3]}, base), out)
    expect("a point that is gone: refused, key and point named",
           run.code == 2 and "run.seed: no longer has 2" in run.err and "points: seed=2" in run.err, run)
    other = config(steps=3, eval_interval=0)
    run = sweep(spec({"seeds": [1, 2]}, other), out)
    expect("another base: refused, key named",
           run.code == 2 and "train.steps: 2 there, 3 now  (all points)" in run.err, run)
    expect("nothing has changed", names(out) == ["seed=1", "seed=2"] and
           all(len(Metrics(out / name).headers) == 1 for name in names(out)), names(out))
    run = sweep(spec({"seeds": [3, 2, 1]}, base), out)
    expect("a point that is added: run", run.code == 0 and "1 of 3 points to run" in run.out, run)
    expect("the old ones keep their places", names(out) == ["seed=1", "seed=2", "seed=3"], names(out))
    expect_complete(out, 2, 3)


@case
def refused():
    """Catches: a sweep that starts although a point cannot run, or leaves a folder behind."""
    out = scratch("out")
    fits = spec({"seeds": [1]})
    for name, file, options, said in (
            ("an unknown key", spec({"grid": {"optimizer.lrr": [1]}}), (), "did you mean `lr`"),
            ("a value out of range", spec({"grid": {"optimizer.lr": [0.1, -1]}}), (), "expected a number > 0"),
            ("a point that does not fit its ranks", spec({"list": [{}, {"train.global_batch_size": 5}]}),
             ("--ranks", 2), "train.global_batch_size: 5 is not a multiple"),
            ("no base", spec({"seeds": [1]}, "nowhere.yaml"), (), f"looked for {SOURCE}/nowhere.yaml"),
            ("no such file", scratch("nothing.yaml"), (), "No such file"),
            ("too little memory", fits, ("--memory-limit", 0.0001), "above --memory-limit 0.0001"),
            ("no scripts", fits, ("--scripts", scratch("none")), "--scripts"),
            ("no sbatch", fits, ("--launcher", "slurm"), "there is no sbatch here"),
            ("an unknown launcher", fits, ("--launcher", "lsf"), "lsf")):
        run = sweep(file, out, *options, env={"PATH": str(only("bash"))} if name == "no sbatch" else None)
        expect(f"{name}: exit code 2, and why", run.code == 2 and said in run.err, run)
        expect(f"{name}: no point was started", not list(out.glob("*/metrics.jsonl")), run)
    used = scratch("used")
    used.mkdir()
    (used / "precious.txt").write_text("mine")
    run = sweep(fits, used)
    expect("a folder of something else: refused", run.code == 2 and "precious.txt" in run.err, run)
    expect("a folder of something else: left as it was", os.listdir(used) == ["precious.txt"], os.listdir(used))


@case
def planned():
    """Catches: a dry run that writes, or is slow; an example that does not hold."""
    for example in sorted((SOURCE / "configs/sweeps").glob("*.yaml")):
        out = scratch("out")
        run = sweep(example, out, "--dry-run")
        rows = run.out.splitlines()[2:]
        expect(f"{example.name}: exit code 0", run.code == 0 and rows, run)
        expect(f"{example.name}: every point is missing yet", all(row.endswith(" missing") for row in rows), run)
        expect(f"{example.name}: nothing is written", not out.exists(), run)
    many = spec({"grid": {"optimizer.lr": [i / 1000 for i in range(1, 11)], "train.seq_len": [8, 16],
                          "model.intermediate_size": [64, 72, 80, 88, 96]}, "seeds": [1, 2, 3, 4, 5]})
    run = sweep(many, scratch("out"), "--dry-run", "--memory-limit", 1)
    seconds = run.rusage.ru_utime + run.rusage.ru_stime
    expect("500 points: planned", run.code == 0 and run.out.count(" missing\n") == 500, run)
    # Time on the processors: a busy machine does not count.
    expect(f"500 points: {seconds:.1f} s of processor time, below 20 s", seconds < 20)


def only(*programs):
    """A folder with these programs and nothing else."""
    folder = scratch("bin")
    folder.mkdir()
    for program in programs:
        (folder / program).symlink_to(next(Path(path) / program for path in os.environ["PATH"].split(":")
                                           if (Path(path) / program).exists()))
    return folder


def batch_system(**scripts):
    """A folder with programs of a batch system; each notes how it was called."""
    folder = only("bash", "env", "cat", "dirname")
    for name, body in scripts.items():
        (folder / name).write_text(f'#!/bin/bash\nfor word; do echo "$word"; done >{folder}/{name}.called\n{body}\n')
        (folder / name).chmod(0o755)
    return folder


def called(folder, program):
    path = folder / f"{program}.called"
    return path.read_text().splitlines() if path.exists() else None


@case
def array_jobs():
    """Catches: a point that is submitted twice, or never again; options that do not reach the batch system. The real
    Slurm is in tests/batch."""
    base, out = config(steps=2, eval_interval=0), scratch("out")
    file = spec({"seeds": [1, 2, 3, 4]}, base)
    run = sweep(spec({"seeds": [1]}, base), out)  # one point is done
    run = Run(words(file, out, "--launcher", "slurm"), cwd=out).wait()
    expect("submitted from elsewhere: refused", run.code == 2 and f"run this in {SOURCE}" in run.err, run)
    bin = batch_system(sbatch="echo '71;cluster'", squeue="cat $(dirname $0)/queue",
                       qsub="echo 5[].server", qstat="cat $(dirname $0)/queue; exit $(cat $(dirname $0)/code)")
    env = {"PATH": str(bin), "MESHARD_ACCOUNT": "a", "MESHARD_SUBMIT_OPTIONS": "--qos=b  -x c",
           "MESHARD_STOP_BEFORE_S": "60"}
    run = sweep(file, out, "--launcher", "slurm", "--ranks", 2, "--jobs", 3, env=env)
    expect("another number of ranks: refused", run.code == 2 and called(bin, "sbatch") is None, run)
    run = sweep(file, out, "--launcher", "slurm", "--jobs", 3, env=env)
    scripts = f"{SOURCE}/jobs"
    expect("sbatch gets what is open, and the site's options", called(bin, "sbatch") ==
           ["--parsable", "--account=a", "--signal=B:USR1@60", "--cpus-per-task=1", "--qos=b", "-x", "c", "--array=1-3%3",
            "--ntasks=1", f"{scripts}/slurm/array.sbatch", str(out)], called(bin, "sbatch"), run)
    expect("the job is said and noted", run.code == 0 and "submitted as slurm 71: 3 points of 1 rank each, indices 1-3" in run.out and
           (out / "jobs.txt").read_text() == "slurm 71 1-3\n", run)

    (bin / "sbatch.called").unlink()
    (bin / "queue").write_text("70 1\n71 1\n71 3\n12 N/A\n")
    run = sweep(file, out, "--launcher", "slurm", env=env)
    expect("what is in the queue is not submitted again", "--array=2" in (called(bin, "sbatch") or []), run)
    expect("and said", "point seed=2: left alone, in slurm 71" in run.out, run)
    (bin / "queue").write_text("71 1\n71 2\n71 3\n")
    (bin / "sbatch.called").unlink()
    run = sweep(file, out, "--launcher", "slurm", env=env)
    expect("all in the queue: nothing is submitted", run.code == 0 and called(bin, "sbatch") is None, run)
    run = sweep(file, out, env={"PATH": f"{bin}:{os.environ['PATH']}"})
    expect("nor run here", run.code == 75 and "0 of 4 points to run" in run.out, run)
    (bin / "squeue").write_text("#!/bin/bash\necho down >&2; exit 1\n")
    run = sweep(file, out, "--launcher", "slurm", env=env)
    expect("no answer: refused", run.code == 2 and "cannot ask" in run.err and "down" in run.err and
           called(bin, "sbatch") is None, run)

    (out / "jobs.txt").unlink()
    run = sweep(file, out, "--launcher", "pbs", env=env)
    # What is set in the environment is to reach the job, where it wins as it does here.
    given = [name for name in sorted({**os.environ, **env}) if name.startswith("MESHARD_") or name == "PREFLIGHT"]
    expect("qsub gets a range, the site's options, and the settings of the environment", called(bin, "qsub") ==
           ["-A", "a", "--qos=b", "-x", "c", "-l", "select=1:ncpus=1:mpiprocs=1:ompthreads=1", "-J", "1-3", "-v",
            ",".join([f"SWEEP={out}", *given]), f"{scripts}/pbs/array.pbs"], called(bin, "qsub"), run)
    (bin / "qsub.called").unlink()
    head = "Job id  Name  User  Time Use S Queue\n"
    subjobs = {index: f"5[{index}].server  x  me  0 {state} workq\n" for index, state in ((1, "R"), (2, "Q"), (3, "Q"))}
    (bin / "queue").write_text(f"{head}5[].server  x  me  0 B workq\n{''.join(subjobs.values())}51.server  x  me  0 X workq\n")
    (bin / "code").write_text("0")
    run = sweep(file, out, "--launcher", "pbs", env=env)
    expect("an array that is there: nothing is submitted", run.code == 0 and called(bin, "qsub") is None, run)
    expect("qstat is asked for the subjobs", called(bin, "qstat") == ["-t", "5[].server"], called(bin, "qstat"))
    killed = {**subjobs, 2: subjobs[2].replace(" Q ", " X ")}
    lock = out / "seed=3/lock"
    lock.write_text(json.dumps({"host": "another-host", "pid": 1, "start": "1", "job": "pbs 5[2].server"}))
    run = sweep(file, out, "--launcher", "pbs", env=env)
    expect("a subjob that holds its point's lock on another host: left alone", run.code == 0 and lock.exists() and
           "point seed=3: left alone, running: process 1 on another-host" in run.out and called(bin, "qsub") is None, run)
    (bin / "queue").write_text(f"{head}5[].server  x  me  0 B workq\n{''.join(killed.values())}")
    (bin / "qsub").write_text((bin / "qsub").read_text().replace("5[].server", "6.server"))
    run = sweep(file, out, "--launcher", "pbs", env=env)
    expect("a killed subjob of an array that goes on: submitted again, alone",
           f"SWEEP={out},INDEX=2" in (called(bin, "qsub") or ["", ""])[-2] and "pbs 6.server 2\n" in
           (out / "jobs.txt").read_text(), run)
    expect("and its lock is removed", not lock.exists() and "pbs 5[2].server left its lock, and is over" in run.out, run)
    (bin / "code").write_text("153")
    run = sweep(file, out, "--launcher", "pbs", env=env)
    expect("an array that is gone: submitted again", run.code == 0 and called(bin, "qsub"), run)
    (bin / "qsub").write_text("#!/bin/bash\necho 'qsub: Unknown queue' >&2; exit 170\n")
    run = sweep(file, out, "--launcher", "pbs", env=env)
    expect("a refusal: exit code 2, its words, and where to look", run.code == 2 and "Unknown queue" in run.err and
           "jobs/site.env" in run.err, run)


main()
