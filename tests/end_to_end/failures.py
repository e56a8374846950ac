#!/usr/bin/env python3
"""Ranks that die or hang, runs that share a folder, disks that refuse, numbers that are not finite."""
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import (Metrics, case, expect, main, read_bytes, says_once, scratch, start_training, steps_logged,
                     training, until)

ENDLESS = {"train.steps": 1000000, "train.eval_interval": 0}
SHORT = {"train.steps": 2, "train.eval_interval": 0}
FSDP = {**ENDLESS, "parallel.dp_outer": 1}


def started(folder, ranks, values, steps=3, **named):
    """A run that is in its steps."""
    run = start_training(folder, ranks, values=values, **named)
    until(lambda: steps_logged(folder) >= steps, 90, f"step {steps}", run)
    return run


def is_gone(pid):
    stat = read_bytes(f"/proc/{pid}/stat")
    return stat == b"" or stat.rsplit(b")", 1)[1].split()[0] in (b"Z", b"X")


@case
def killed_rank():
    """Catches: peers that wait for ever for a dead rank; half-written files; a lock that outlives its owner."""
    for victim in (1, 0):
        folder = scratch("run")
        run = started(folder, 3, FSDP)
        ranks = [run.rank_pid(rank, folder) for rank in range(3)]
        begin = time.monotonic()
        os.kill(ranks[victim], signal.SIGKILL)
        run.wait(40)
        seconds = time.monotonic() - begin
        expect(f"rank {victim} killed: the run ends within 15 s ({seconds:.1f} s)", seconds <= 15, run)
        expect(f"rank {victim} killed: exit code 128 + 9", run.code == 137, run)
        expect(f"rank {victim} killed: it is named, with its signal",
               re.search(rf"rank {victim} .*signal 9", run.out + run.err), run)
        until(lambda: all(map(is_gone, ranks)), 10, "the end of all ranks")
        left = [path.name for path in folder.rglob("*.partial")]
        expect(f"rank {victim} killed: nothing half-written", not left and Metrics(folder).whole, left)
        begin = time.monotonic()
        run = training(folder, 2, values=SHORT, options=("--overwrite",))
        expect(f"rank {victim} killed: the next run takes the folder over at once", run.code == 0, run)
        expect("without the patience that a live owner gets", run.seconds < 9 or "locked" not in run.err, run)


@case
def stopped_rank():
    """Catches: a hang that lasts, or whose summary blames another rank or does not say in what."""
    timeout = 3
    folder = scratch("run")
    # No metrics lines in between: what the ranks do in a step is to be found, not their logging.
    run = started(folder, 3, {**FSDP, "logging.interval": 1000000, "comm.timeout_s": timeout}, steps=1)
    time.sleep(1)
    victim = run.rank_pid(1, folder)
    begin = time.monotonic()
    os.kill(victim, signal.SIGSTOP)
    try:
        run.wait(60)
    finally:
        if not is_gone(victim):
            os.kill(victim, signal.SIGKILL)
    seconds = time.monotonic() - begin
    expect("exit code 76", run.code == 76, run)
    expect(f"within comm.timeout_s + 10 s ({seconds:.1f} s)", seconds <= timeout + 10, run)
    pattern = (r"hang: rank 1 \(host \S+, pid \d+\) [^\n]*?(\w+) #\d+ on axis (\w+), unit ([^(]+) \(\d+ bytes\)"
               r"[^\n]*no sign of life")
    expect("standard error names rank, op, axis, unit, once", says_once(run, pattern), run)
    summaries = list((folder / "dump").glob("hang-*.txt"))
    expect("one summary in the dump folder", len(summaries) == 1, run)
    expect("it says the same", summaries and re.search(pattern, summaries[0].read_text()), run)
    expect("the phase is named", re.search(r"phase step \d+", run.err), run)
    run = training(folder, 2, values=SHORT, options=("--overwrite",))
    expect("the next run takes the folder over", run.code == 0, run)


@case
def two_runs_in_one_folder():
    """Catches: two runs that write the same files; an owner that is not named."""
    folder = scratch("run")
    first = started(folder, 2, ENDLESS)
    owner = json.loads((folder / "lock").read_text())
    expect("the lock names host, pid and start time", set(owner) >= {"host", "pid", "start"}, owner)
    second = training(folder, 2, values=ENDLESS, options=("--overwrite",), limit=60)
    expect("the second run: exit code 2", second.code == 2, second)
    expect("it names the owner, once", says_once(second, rf"locked by [^\n]*{owner['pid']}"), second)
    expect(f"after about ten seconds ({second.seconds:.1f} s)", 9.5 <= second.seconds <= 25, second)
    before = steps_logged(folder)
    until(lambda: steps_logged(folder) > before, 20, "another step of the first run", first)
    expect("the first run goes on", first.poll() is None and Metrics(folder).headers, first)


@case
def dead_owner():
    """Catches: a folder that nobody can use after a crash; a process that happens to have the dead owner's pid."""
    folder = scratch("run")
    first = start_training(folder, 1, values=ENDLESS)
    until(lambda: steps_logged(folder) >= 1, 90, "a step", first)
    lock = (folder / "lock").read_text()
    first.send(signal.SIGKILL)
    first.wait(10)
    expect("the lock of a killed run stays", (folder / "lock").exists(), first)
    waits = []
    for name, text in (("the killed run", lock), ("a live process of a later start",
                       json.dumps({**json.loads(lock), "pid": os.getpid()})), ("nobody: an empty file", "")):
        (folder / "lock").write_text(text)
        run = training(folder, 1, values=SHORT, options=("--overwrite",))
        waits.append(run.seconds)
        expect(f"the lock of {name} is taken over ({run.seconds:.1f} s)", run.code == 0, run)
    expect("a dead owner's at once", max(waits[:2]) < 9, waits)
    expect("no lock is left", not (folder / "lock").exists(), folder)


@case
def waiting_for_an_owner():
    """Catches: a run that gives up although the one before it is about to leave."""
    folder = scratch("run")
    first = started(folder, 1, ENDLESS)
    second = start_training(folder, 1, values=SHORT, options=("--overwrite",))
    time.sleep(4)
    first.send(signal.SIGUSR1)
    first.wait(30)
    second.wait(60)
    expect("the second run waits and then trains", second.code == 0, first, second)


@case
def unwritable():
    """Catches: a run folder that cannot be made and an error that does not say so; one message per rank."""
    file = scratch("file")
    file.write_text("in the way")
    run = training(file / "run", 2, values=SHORT)
    expect("below a file: exit code 2", run.code == 2, run)
    expect("below a file: said once, with path and reason",
           says_once(run, re.escape(str(file / "run")) + r".*(Not a directory|not a directory)"), run)
    run = training(file, 2, values=SHORT)
    expect("a file as run folder: exit code 2, said once",
           run.code == 2 and says_once(run, re.escape(str(file)) + r"\b[^/]"), run)


@case
def full_disk():
    """Catches: metrics that are lost in silence; a rank that learns of it and leaves the others waiting."""
    folder = scratch("run")
    folder.mkdir()
    (folder / "metrics.jsonl").symlink_to("/dev/full")
    run = training(folder, 2, values={**SHORT, "train.steps": 200}, options=("--resume", "auto"))
    expect("full disk: exit code 70", run.code == 70, run)
    expect("full disk: said once, with file and reason",
           says_once(run, r"metrics\.jsonl[^\n]*No space left on device"), run)
    expect("full disk: no lock is left", not (folder / "lock").exists(), run)


@case
def unwritable_log():
    """Catches: a log that cannot be written, and a run that says nothing."""
    folder = scratch("run")
    folder.mkdir()
    (folder / "log.txt").symlink_to("/nowhere/log.txt")
    run = training(folder, 2, values=SHORT)
    expect("a log that cannot be opened: not 0, said once",
           run.code in (2, 70) and says_once(run, r"log\.txt[^\n]*No such file"), run)


NOT_FINITE = {"train.steps": 8, "train.eval_interval": 0, "optimizer.type": "sgd", "optimizer.lr": 1e30,
              "train.max_grad_norm": 0, "lr_schedule.type": "constant",
              "lr_schedule.min_lr": 0}


def check_lines(name, metrics, run):
    bad = [line for line in metrics.steps if line["nonfinite"]]
    expect(f"{name}: metrics name tensors",
           bad and all(isinstance(name, str) and name for line in bad for name in line["nonfinite"]), run)
    unnamed = [line["step"] for line in metrics.steps
               if (line["loss"] is None or line["grad_norm"] is None) and not line["nonfinite"]]
    expect(f"{name}: no null without a name", not unnamed, unnamed)
    return bad


@case
def not_finite():
    """Catches: training on after a value is lost; an error that does not say where, or says it on every rank."""
    folder = scratch("run")
    run = training(folder, 2, values=NOT_FINITE)
    expect("stop: exit code 70", run.code == 70, run)
    expect("stop: step and tensor are named, once",
           says_once(run, r"step \d+: not finite: [^\n]*(model\.|lm_head|loss)"), run)
    metrics = Metrics(folder)
    bad = check_lines("stop", metrics, run)
    expect("stop: no step after it", bad and bad[0] is metrics.steps[-1], run)
    expect("stop: the end is noted", metrics.ends and metrics.ends[-1]["exit"] == 70, run)
    expect("stop: no lock is left", not (folder / "lock").exists(), run)

    folder = scratch("run")
    run = training(folder, 2, values={**NOT_FINITE, "health.on_nonfinite": "skip"})
    metrics = Metrics(folder)
    expect("skip: exit code 0", run.code == 0, run)
    expect("skip: all steps are there", [line["step"] for line in metrics.steps] == list(range(1, 9)), run)
    for number, line in enumerate(check_lines("skip", metrics, run), 1):
        expect(f"skip: step {line['step']} is said once, and counted", line.get("skipped_in_a_row") == number and
               says_once(run, rf"step {line['step']} skipped \({number} in a row\): not finite: \w"), run)

    folder = scratch("run")
    run = training(folder, 2, values={**NOT_FINITE, "health.on_nonfinite": "skip", "health.max_skipped": 3})
    metrics = Metrics(folder)
    expect("too many skipped: exit code 70", run.code == 70, run)
    expect("too many skipped: says so, once",
           says_once(run, r"3 steps in a row were skipped \(health\.max_skipped\)"), run)
    expect("too many skipped: stops there", metrics.steps[-1].get("skipped_in_a_row") == 3, run)


main()
