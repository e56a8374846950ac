#!/usr/bin/env python3
"""Requests to stop, however and whenever they come, end the run in order, with a checkpoint, and with exit code 75;
with 70 if this start has saved no step."""
import os
import signal
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import (Metrics, case, expect, is_running, main, says_once, scratch, start_training, steps_logged,
                     training, until, write_text_corpus)
from saved import steps_saved

ENDLESS = {"train.steps": 1000000, "train.eval_interval": 0}


def expect_stopped(name, run, folder, limit=40, saves=True):
    """`run` has been asked to stop and does; saves=False: with checkpoint.on_stop: false."""
    begin = time.monotonic()
    run.wait(limit)
    seconds = time.monotonic() - begin
    metrics = Metrics(folder)
    last = metrics.steps[-1]["step"] if metrics.steps else 0
    code = 75 if saves and last else 70
    what = (r"no step was saved; give it more time than \d+ s" if not last else "its checkpoint is complete" if saves
            else r"checkpoint\.on_stop is false, so all of it is lost")
    expect(f"{name}: ends ({seconds:.1f} s) with exit code {code}", run.code == code, run)
    expect(f"{name}: says once /{what}/", says_once(run, what), run)
    saved = steps_saved(folder)
    expect(f"{name}: the checkpoint is of the last step, {last}", saved == ([last] if saves and last else []), saved)
    end = metrics.ends[-1] if metrics.ends else {}
    expect(f"{name}: metrics.jsonl ends with an end line", metrics.ends and metrics.lines[-1] == {"end": end}, run)
    expect(f"{name}: it has exit, step and reason", end.get("exit") == code and end.get("reason")
           and end.get("step") == last, end)
    expect(f"{name}: the lock is gone", not (folder / "lock").exists(), run)
    return metrics


def in_steps(folder, ranks=2, **named):
    run = start_training(folder, ranks, values=ENDLESS, **named)
    until(lambda: steps_logged(folder) >= 3, 90, "step 3", run)
    return run


@case
def signals():
    """Catches: a signal that kills the ranks, or reaches only some of them."""
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        folder = scratch("run")
        run = in_steps(folder, launch=True)
        run.send(number)
        expect_stopped(f"{number.name} to launch.sh", run, folder)


@case
def without_launcher():
    """Catches: a run of one rank, without mpirun, that a signal kills."""
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
        folder = scratch("run")
        run = in_steps(folder, 1)
        run.send(number)
        expect_stopped(f"{number.name} to one rank alone", run, folder)


@case
def one_rank_of_several():
    """Catches: a request that ranks do not agree on: some stop, the others wait for them."""
    folder = scratch("run")
    run = in_steps(folder, 3)
    os.kill(run.rank_pid(2, folder), signal.SIGUSR1)
    expect_stopped("USR1 to rank 2 of 3", run, folder)


@case
def stop_file():
    """Catches: a STOP file that is not seen, or that stops the next run too."""
    folder = scratch("run")
    run = in_steps(folder)
    (folder / "STOP").touch()
    expect_stopped("STOP", run, folder)
    expect("STOP: the file is removed", not (folder / "STOP").exists(), run)


@case
def without_a_checkpoint():
    """Catches: checkpoint.on_stop: false that saves, or ends with the code that asks to be started again."""
    folder = scratch("run")
    run = start_training(folder, 2, values={**ENDLESS, "checkpoint.on_stop": "false"})
    until(lambda: steps_logged(folder) >= 3, 90, "step 3", run)
    (folder / "STOP").touch()
    expect_stopped("on_stop: false", run, folder, saves=False)


@case
def time_limit():
    """Catches: train.max_minutes read in other units, or looked at on one rank only."""
    folder = scratch("run")
    begin = time.monotonic()
    run = start_training(folder, 2, values={**ENDLESS, "train.max_minutes": 0.02})
    expect_stopped("train.max_minutes", run, folder, 90)
    expect("train.max_minutes: not before 1.2 s", time.monotonic() - begin >= 1.2, run)


@case
def during_start_up():
    """Catches: a request before the first step that is lost, or kills."""
    folder = scratch("run")
    run = start_training(folder, 2, values=ENDLESS, launch=True)
    until(lambda: (folder / "lock").exists(), 90, "the lock", run)
    run.send(signal.SIGUSR1)
    expect_stopped("USR1 during start-up", run, folder)

    # Earlier still no rank has handlers, and the request ends them: launch.sh says 70, as nothing was saved. Or mpirun
    # has none: the request is repeated, and comes when the run has saved.
    folder = scratch("run")
    run = start_training(folder, 2, values=ENDLESS, launch=True)
    until(lambda: is_running("mpirun", folder), 30, "mpirun", run)
    run.send(signal.SIGTERM)
    run.wait(60)
    code = 75 if steps_saved(folder) else 70
    expect(f"TERM at once: ends with exit code {code}", run.code == code, run)
    expect("TERM at once: no lock is left", not (folder / "lock").exists(), run)


@case
def during_evaluation():
    """Catches: an evaluation that has to end first, or that is reported although it was cut short."""
    corpus = write_text_corpus(scratch("corpus") / "words.txt", 2000000)
    folder = scratch("run")
    run = start_training(folder, 2, launch=True, values={
        **ENDLESS, "train.eval_interval": 1, "train.eval_batches": 1000000, "data.type": "text",
        "data.files": f"[{corpus}]", "data.validation_fraction": 0.9})
    until(lambda: steps_logged(folder) >= 1, 90, "the first step", run)
    time.sleep(1)
    expect("the evaluation is under way", run.poll() is None and not Metrics(folder).evals, run)
    run.send(signal.SIGUSR1)
    metrics = expect_stopped("USR1 during evaluation", run, folder)
    expect("USR1 during evaluation: no result of it", not metrics.evals and len(metrics.steps) == 1, run)


@case
def repeated_and_late():
    """Catches: a second request that harms an orderly end; a request made before the run that is lost."""
    folder = scratch("run")
    run = in_steps(folder, launch=True)
    for _ in range(3):
        run.send(signal.SIGUSR1)
        time.sleep(0.02)
    expect_stopped("USR1 three times", run, folder)
    folder = scratch("run")
    (folder).mkdir()
    (folder / "STOP").touch()
    run = training(folder, 2, values={"train.steps": 2})
    expect("a STOP file that is there at the start: exit code 70", run.code == 70, run)
    expect("a STOP file that is there at the start: says what to do",
           says_once(run, r"no step was saved; give it more time than \d+ s"), run)
    expect("a STOP file that is there at the start: no step was taken", not Metrics(folder).steps, run)
    expect("a STOP file that is there at the start: removed", not (folder / "STOP").exists(), run)


main()
