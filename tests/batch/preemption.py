#!/usr/bin/env python3
"""Requests to stop at the worst moments: while a checkpoint is being written, twice, with hardly any time left. Those in
start-up, steps and evaluation are in end_to_end/stop.py."""
import os
import signal
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from batch_jobs import VALUES, ranks_of
from harness import Metrics, Skip, case, expect, main, says_once, scratch, start_training, until
from saved import steps_saved

SYNC_S = 0.5   # a save makes five: its data, meshard.json, .metadata, two folders
SAVE_S = 5 * SYNC_S
ENDLESS = {**VALUES, "train.steps": 1000000}


def slow_saves():
    library = os.environ.get("MESHARD_SLOW_SYNC")
    if not library:
        raise Skip("MESHARD_SLOW_SYNC is not set: run this test with ctest")
    return {"LD_PRELOAD": library, "MESHARD_SLOW_SYNC_S": str(SYNC_S)}


def saving(folder, ranks=2, **values):
    """A run that has begun to write its first checkpoint."""
    values = {key.replace("__", "."): value for key, value in values.items()}
    run = start_training(folder, ranks, values={**ENDLESS, **values}, launch=True, env=slow_saves())
    until(lambda: list(folder.glob("checkpoints/*.partial")), 120, "a save that is under way", run)
    return run


def expect_saved(what, run, folder, limit=60):
    """The run has been asked to stop, and ends with a complete checkpoint of its last step, written once."""
    run.wait(limit)
    last = Metrics(folder).steps[-1]["step"]
    expect(f"{what}: exit code 75", run.code == 75, run)
    expect(f"{what}: stopped once", says_once(run, "stopped after step"), run)
    expect(f"{what}: the newest checkpoint is of the last step, {last}", steps_saved(folder)[-1:] == [last], run)
    expect(f"{what}: written once", says_once(run, rf"\ncheckpoint \S*step-{last:08}\n"), run)
    expect(f"{what}: nothing half-written is left", not list(folder.rglob("*.partial")), run)
    return last


@case
def while_saving():
    """Catches: a request that cuts a save short, is forgotten over it, or makes it be written again."""
    folder = scratch("run")
    run = saving(folder, checkpoint__interval=2, checkpoint__async="false")
    run.send(signal.SIGUSR1)
    last = expect_saved("USR1 while saving", run, folder)
    expect("no step after it", last == 2, run)


@case
def during_an_asynchronous_save():
    """Catches: a save in flight that is dropped, or that the one of the stop runs into; a request to one rank only."""
    folder = scratch("run")
    run = saving(folder, checkpoint__interval=2, checkpoint__async="true")
    os.kill(ranks_of(folder)[1], signal.SIGUSR1)
    expect_saved("USR1 to rank 1 during an asynchronous save", run, folder)
    expect("the save that was in flight is complete, too", 2 in steps_saved(folder), run)


@case
def twice():
    """Catches: a second request that interrupts the save of the first."""
    folder = scratch("run")
    run = start_training(folder, 2, values=ENDLESS, launch=True, env=slow_saves())
    until(lambda: Metrics(folder).steps, 120, "a step", run)
    run.send(signal.SIGUSR1)
    until(lambda: list(folder.glob("checkpoints/*.partial")), 60, "the save of the stop", run)
    run.send(signal.SIGUSR1)
    run.send(signal.SIGTERM)
    os.kill(ranks_of(folder)[0], signal.SIGTERM)
    expect_saved("a second, third and fourth request during its save", run, folder)


@case
def time_for_the_last_save():
    """Catches: train.max_minutes that leaves no time for the checkpoint, so that the job is killed over it; one that
    gives far too much of it away."""
    folder = scratch("run")
    limit = 15.0
    values = {**ENDLESS, "checkpoint.interval": 3, "checkpoint.async": "false", "train.max_minutes": limit / 60}
    run = start_training(folder, values=values, launch=True, env=slow_saves())
    until(lambda: (folder / "lock").exists(), 120, "the lock", run)   # about then the time begins to count
    begin = time.time()
    expect_saved("max_minutes", run, folder)
    seconds = (folder / "metrics.jsonl").stat().st_mtime - begin
    expect(f"max_minutes: over after {seconds:.1f} s, within {limit:.0f} s", seconds <= limit + 0.5, run)
    expect("max_minutes: but for a save and some steps, all of it was used", seconds >= limit - 2 * SAVE_S - 2, run)

    folder = scratch("run")
    run = saving(folder, 1, checkpoint__interval=1, checkpoint__async="false", train__max_minutes=0.5 * SAVE_S / 60)
    last = expect_saved("max_minutes shorter than a save", run, folder)
    expect("max_minutes shorter than a save: it ends with the first", last == 1, run)


main()
