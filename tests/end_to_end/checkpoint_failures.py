#!/usr/bin/env python3
"""Saves that cannot be: no room, no permission, a writer that is killed. The checkpoint before them stays whole."""
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import (BINARY, TINY, Metrics, Run, Skip, case, expect, main, meshard, mpirun, processes, says_once,
                     scratch, start_training, train_command, training, until)
from saved import AUTO, CONSTANT, checkpoint, data_of, history, parts_that_differ, steps_saved

VALUES = {**CONSTANT, "train.steps": 2, "checkpoint.interval": 1}


def small_disk(kilobytes):
    disk = scratch("disk")
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", disk], capture_output=True,
                          text=True)
    if done.returncode != 0:
        raise Skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    return disk


@case
def full_disk():
    """Catches: a full disk that costs the checkpoints that were whole, leaves half of one, or stops a run that was to
    go on; a rank that learns of it and leaves the others waiting."""
    for async_save in ("true", "false"):
        for on_error in ("continue", "stop"):
            what = f"async {async_save}, on_error {on_error}"
            disk = small_disk(1300)
            try:
                folder = scratch("run")
                folder.mkdir()
                (folder / "checkpoints").symlink_to(disk)   # only they find no room
                values = {**VALUES, "train.steps": 5, "checkpoint.keep_last": 9, "checkpoint.async": async_save,
                          "checkpoint.on_error": on_error}
                run = training(folder, 2, values=values, options=AUTO)
                whole, last = steps_saved(folder), Metrics(folder).steps[-1]["step"]
                expect(f"{what}: one at least has found room, one has not", 0 < len(whole) < 5, run)
                expect(f"{what}: nothing half-written", not list(disk.rglob("*.partial")), list(disk.rglob("*")))
                if on_error == "continue":
                    expect(f"{what}: exit code 0, all steps done", run.code == 0 and last == 5, run)
                    expect(f"{what}: each failure is said once", all(
                        says_once(run, rf"checkpoint of step {step} failed, training goes on: [^\n]*No space left")
                        for step in range(1, 6) if step not in whole), run)
                else:
                    expect(f"{what}: exit code 70", run.code == 70, run)
                    expect(f"{what}: said once, with the file",
                           says_once(run, r"step-\d+\.partial/\S+[^\n]*No space left on device"), run)
                run = training(scratch("elsewhere"), 2, values=VALUES | {"train.steps": 6, "checkpoint.interval": 0},
                               options=("--resume", folder))
                expect(f"{what}: the newest that was whole still is",
                       run.code == 0 and says_once(run, f"resuming after step {whole[-1]} from"), run)
            finally:
                subprocess.run(["umount", disk], check=True)


def refused_save(what, start, folder, pattern, on_error):
    """A run that has checkpoints 1 and 2, and goes on where it cannot save another. `start` starts it."""
    kept = {step: data_of(checkpoint(folder, step)) for step in (1, 2)}
    run = start({**VALUES, "train.steps": 4, "checkpoint.on_error": on_error}).wait(90)
    if on_error == "stop":
        expect(f"{what}: exit code 70", run.code == 70, run)
        expect(f"{what}: said once, with rank, path and reason", says_once(run, pattern.format(3)), run)
        expect(f"{what}: raised on every rank", "MPI_ABORT" not in run.out + run.err, run)
    else:
        expect(f"{what}: exit code 0, all steps done",
               run.code == 0 and Metrics(folder).texts("step") == [1, 2, 3, 4], run)
        for step in (3, 4):
            expect(f"{what}: step {step}: said once, with rank, path and reason", says_once(
                run, f"checkpoint of step {step} failed, training goes on: " + pattern.format(step)), run)
    expect(f"{what}: the checkpoints before have the same bytes, and there is no other",
           steps_saved(folder) == [1, 2] and kept == {step: data_of(checkpoint(folder, step)) for step in (1, 2)}, run)
    return run


def goes_on(what, run, folder):
    expect(f"{what}: the run goes on from step 2", run.code == 0 and says_once(run, "resuming after step 2 from"), run)
    expect(f"{what}: and saves again", steps_saved(folder) == [3, 4], run)


# The file system asks root for no permission.
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") if os.geteuid() == 0 else ()


def folder_of_nobody():
    """A run folder in which an ordinary user trains, and its home."""
    folder = scratch("run")
    for path in (folder.parent.parent, folder.parent):
        path.chmod(0o755)
    folder.mkdir()
    if NOBODY:
        os.chown(folder, 65534, 65534)
    try:
        able = subprocess.run([*NOBODY, BINARY, "--version"], capture_output=True, text=True)
    except OSError as error:
        raise Skip(f"no other user can be had: {error}") from error
    if able.returncode != 0:
        raise Skip(f"another user cannot run {BINARY}: {able.stderr.strip()}")
    return folder


@case
def no_permission():
    """Catches: a folder that may not be written taken for a checkpoint, or one that costs those in it; a refusal that
    does not say which path and why, or that only one rank learns of."""
    for async_save, on_error in (("true", "continue"), ("false", "stop")):
        what = f"a folder without permission, async {async_save}, on_error {on_error}"
        folder = folder_of_nobody()

        def start(values, folder=folder, async_save=async_save):
            values = {**values, "checkpoint.async": async_save}
            command = train_command(folder, TINY, values, AUTO)
            return Run([*NOBODY, *mpirun(2, command)], env={"HOME": str(folder)})
        run = start(VALUES).wait(90)
        if not expect(f"{what}: two steps: exit code 0", run.code == 0 and steps_saved(folder) == [1, 2], run):
            continue
        (folder / "checkpoints").chmod(0o555)
        pattern = r"rank 0 on \S+: cannot make folder \S+step-0000000{}\.partial: Permission denied"
        refused_save(what, start, folder, pattern, on_error)
        (folder / "checkpoints").chmod(0o755)
        if on_error == "stop":
            goes_on(what, start({**VALUES, "train.steps": 4}).wait(90), folder)


# $0: a folder, which rank 1 alone sees as read-only.
READ_ONLY = """
if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then
  exec unshare --mount sh -c 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"' "$0" "$@"
fi
exec "$@"
"""


@case
def no_permission_on_one_rank():
    """Catches: a rank that cannot write and leaves the others waiting, or lets them take the checkpoint for whole."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        raise Skip("no rank can be given its own view of the file system here: unshare --mount needs root")
    for async_save, on_error in (("true", "stop"), ("false", "continue")):
        what = f"one rank without permission, async {async_save}, on_error {on_error}"
        folder = scratch("run")
        run = training(folder, 2, values=VALUES)
        if not expect(f"{what}: two steps: exit code 0", run.code == 0 and steps_saved(folder) == [1, 2], run):
            continue

        def start(values, folder=folder, async_save=async_save):
            command = train_command(folder, TINY, {**values, "checkpoint.async": async_save}, AUTO)
            return Run(mpirun(2, ["bash", "-c", READ_ONLY, folder / "checkpoints", *command]))
        pattern = r"rank 1 on \S+: cannot create \S+step-0000000{}\.partial/__1_0\.distcp: Read-only file system"
        run = refused_save(what, start, folder, pattern, on_error)
        expect(f"{what}: nothing half-written", not list(folder.rglob("*.partial")), run)
        if on_error == "stop":
            goes_on(what, training(folder, 2, values={**VALUES, "train.steps": 4}, options=AUTO), folder)


MOMENTS = int(os.environ.get("MESHARD_KILLS", "10"))   # in synchronous saves, and as many in asynchronous ones
SEED = 20
# 7 MB: a save takes some 30 ms, most of a step.
LARGER = {"model.hidden_size": 128, "model.intermediate_size": 512}
LONGEST = 0.05


def saves_in_flight(folder):
    """Steps of `.partial` folders that are being written; an older one is being deleted."""
    newest = max(steps_saved(folder), default=0)
    names = [path.name for path in (folder / "checkpoints").glob("step-*.partial")]
    return [step for step in (int(name[5:13]) for name in names) if step > newest]


def kill_in_a_save(run, folder, after, victims, delay):
    """Kills these ranks some time after a save has begun, of a later step than the one after `after`. Whether it hit
    the save."""
    until(lambda: max(steps_saved(folder), default=0) > after, 90, "another checkpoint", run)
    ranks = [run.rank_pid(rank, folder) for rank in victims]
    deadline = time.monotonic() + 30
    while not saves_in_flight(folder):
        if run.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"waited for a save that begins\n{run.text()}")
        time.sleep(0.0005)
    time.sleep(delay)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    run.wait(60)
    until(lambda: not any(command[0] == str(BINARY) and str(folder) in command for _, command in processes()), 20,
          "the end of all ranks")
    return bool(saves_in_flight(folder))


@case
def killed_while_saving():
    """Catches: a half-written checkpoint that is taken for whole; one that its writers' death made worse; a run that
    many deaths have changed."""
    generator = random.Random(SEED)
    for async_save in ("true", "false"):
        folder, hits, newest = scratch("run"), 0, 0
        values = {**VALUES, **LARGER, "checkpoint.async": async_save}
        # On a busy machine the eye on the folder comes late, and more saves are over before the kill.
        for moment in range(3 * MOMENTS):
            if moment >= MOMENTS and hits >= MOMENTS / 2:
                break
            victims, delay = ((0,), (1,), (0, 1))[moment % 3], generator.uniform(0, LONGEST)
            what = (f"async {async_save}, seed {SEED}, moment {moment}: {delay * 1000:.1f} ms, "
                    f"rank {' and '.join(map(str, victims))}")
            run = start_training(folder, 2, TINY, {**values, "train.steps": 100000}, AUTO)
            hits += kill_in_a_save(run, folder, newest, victims, delay)
            resumed = newest == 0 or says_once(run, f"resuming after step {newest} from")
            expect(f"{what}: it had gone on from step {newest}", resumed and "damaged" not in run.out, run)
            newest = max(steps_saved(folder))
            verified = meshard("inspect", checkpoint(folder, newest), "--verify")
            expect(f"{what}: step {newest} is whole", verified.code == 0, verified)
        expect(f"async {async_save}: {hits} of {moment} kills hit a save", hits >= MOMENTS / 2)

        run = training(folder, 2, TINY, {**values, "train.steps": newest + 1}, AUTO)
        resumed = says_once(run, f"resuming after step {newest} from")
        expect(f"async {async_save}: it goes on to its end", run.code == 0 and resumed, run)
        expect(f"async {async_save}: nothing half-written stays", not list(folder.rglob("*.partial")))
        reference = scratch("uninterrupted")
        run = training(reference, 2, TINY, {**values, "train.steps": newest + 1, "checkpoint.interval": newest + 1})
        ours, theirs = history(folder), history(reference)
        expect(f"async {async_save}: {newest + 1} steps as without {MOMENTS} deaths, bitwise",
               ours == theirs and data_of(checkpoint(folder, newest + 1)) == data_of(checkpoint(reference, newest + 1)),
               run, parts_that_differ(theirs, ours))


main()
