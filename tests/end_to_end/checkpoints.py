#!/usr/bin/env python3
"""A run that is interrupted and goes on is the run that was not; another mesh finds the same state, to the bit."""
import re
import signal

from harness import (Metrics, case, expect, main, scratch, says_once, start_training, steps_logged, training, until,
                     write_text_corpus)
from saved import AUTO, CONSTANT, checkpoint, convert, data_of, history, parts_that_differ, steps_saved

TINY = "configs/tests/tiny.yaml"
MOE = "configs/tests/moe.yaml"


def layout(outer, inner, strategy="fsdp", expert=1):
    return {"parallel.dp_outer": outer, "parallel.dp_shard": inner, "parallel.strategy": strategy,
            "parallel.expert": expert}


def name_of(values):
    outer, inner, strategy, expert = values.values()
    return f"{outer} x {inner} {strategy}" + (f", expert {expert}" if expert > 1 else "")


def ranks_of(values):
    return values["parallel.dp_outer"] * values["parallel.dp_shard"]


def same_run(what, run, folder, reference, last):
    expect(f"{what}: exit code 0", run.code == 0, run)
    ours, theirs = history(folder), history(reference)
    expect(f"{what}: each step stands once", ours["step"] == theirs["step"][-len(ours["step"]):], ours["step"])
    tail = {key: values[-len(ours["step"]):] for key, values in theirs.items()}
    expect(f"{what}: losses, norms, counts and bias as without interruption, bitwise", ours["step"] and ours == tail,
           run, parts_that_differ(ours, tail))
    theirs, ours = (data_of(checkpoint(which, last)) for which in (reference, folder))
    expect(f"{what}: the last checkpoints have the same bytes", ours and ours == theirs,
           parts_that_differ(theirs, ours))


@case
def resumed_is_uninterrupted():
    """Catches: anything of a run's state that a checkpoint lacks, loses or loads too late; a save that training
    disturbs while it is written; a step that is done twice or left out."""
    for config, mesh in ((TINY, layout(2, 2, "hsdp")), (TINY, layout(2, 2, "hfsdp")),
                         (MOE, layout(2, 2, "fsdp", 2)), (MOE, layout(1, 4, "fsdp", 4))):
        name, ranks = name_of(mesh), ranks_of(mesh)
        values = {**CONSTANT, **mesh, "train.steps": 6, "checkpoint.interval": 3}
        reference = scratch("uninterrupted")
        run = training(reference, ranks, config, values)
        expect(f"{name}: exit code 0, saved at steps 3 and 6", run.code == 0 and steps_saved(reference) == [3, 6], run)
        folder = scratch("run")
        values["checkpoint.async"] = "false"
        run = training(folder, ranks, config, {**values, "train.steps": 3})
        expect(f"{name}, sync: the first half: exit code 0", run.code == 0, run)
        run = training(folder, ranks, config, values, AUTO)
        expect(f"{name}, sync: it says where it goes on", says_once(run, "resuming after step 3 from "), run)
        expect(f"{name}, sync: it lists what changed", says_once(run, "train.steps: 3 in the checkpoint, 6 now"), run)
        same_run(f"{name}, sync, --resume auto", run, folder, reference, 6)
        folder = scratch("elsewhere")
        values["checkpoint.async"] = "true"
        run = training(folder, ranks, config, values, ("--resume", checkpoint(reference, 3)))
        same_run(f"{name}, async, --resume DIR into another folder", run, folder, reference, 6)


@case
def epochs():
    """Catches: a data position that is lost, or kept within one epoch only."""
    corpus = write_text_corpus(scratch("corpus") / "words.txt", 900)   # 4 steps and a bit
    values = {**CONSTANT, "train.steps": 10, "checkpoint.interval": 1, "checkpoint.keep_last": 10, "data.type": "text",
              "data.files": f"[{corpus}]"}
    reference = scratch("uninterrupted")
    run = training(reference, 2, values=values)
    expect("uninterrupted: exit code 0", run.code == 0, run)
    for step in (2, 4, 5, 9):
        folder = scratch("run")
        run = training(folder, 2, values=values, options=("--resume", checkpoint(reference, step)))
        same_run(f"from step {step}", run, folder, reference, 10)


@case
def after_a_stop():
    """Catches: a checkpoint at a stop that is of another step than the stop, or not complete when 75 is returned."""
    for what, config, mesh, async_save in (("USR1", MOE, layout(1, 2, "fsdp", 2), "true"),
                                           ("STOP", TINY, layout(2, 1, "hfsdp"), "false")):
        folder = scratch("run")
        values = {**CONSTANT, **mesh, "checkpoint.async": async_save}
        run = start_training(folder, 2, config, {**values, "train.steps": 100000}, launch=True)
        until(lambda: steps_logged(folder) >= 3, 90, "step 3", run)
        run.send(signal.SIGUSR1) if what == "USR1" else (folder / "STOP").touch()
        run.wait(60)
        expect(f"{what}: exit code 75", run.code == 75, run)
        step = Metrics(folder).steps[-1]["step"]
        expect(f"{what}: a checkpoint of the last step, {step}", steps_saved(folder) == [step], run)
        expect(f"{what}: nothing half-written", not list(folder.rglob("*.partial")), run)
        values = {**values, "train.steps": step + 3, "checkpoint.interval": step + 3}
        run = training(folder, 2, config, values, AUTO)
        reference = scratch("uninterrupted")
        whole = training(reference, 2, config, values)
        expect(f"{what}: uninterrupted: exit code 0", whole.code == 0, whole)
        same_run(f"{what} after step {step}", run, folder, reference, step + 3)


DENSE_RING = (layout(1, 2, "zero1"), layout(1, 3), layout(2, 2, "hsdp"), layout(1, 2, "ddp"), layout(1, 4, "zero2"),
              layout(3, 1, "hfsdp"), layout(1, 4), layout(2, 1, "hsdp"), layout(1, 3, "zero2"), layout(2, 2, "hfsdp"),
              layout(1, 4, "ddp"))
EXPERT_RING = (layout(1, 2, "fsdp", 2), layout(2, 2, "hfsdp", 2), layout(1, 4, "zero2", 4), layout(1, 2, "ddp"),
               layout(2, 2, "hsdp", 4), layout(1, 4, "zero1", 2), layout(2, 1, "hfsdp", 2), layout(1, 4, "fsdp", 1),
               layout(2, 2, "fsdp", 1))


@case
def every_layout_from_every_other():
    """Catches: rows, moments or experts that are lost, doubled or moved between ranks, strategies and expert meshes."""
    for config, ring in ((TINY, DENSE_RING), (MOE, EXPERT_RING)):
        first = scratch("one")
        run = training(first, 1, config, {**CONSTANT, "train.steps": 2, "checkpoint.interval": 2})
        expect(f"{config}: one rank: exit code 0", run.code == 0, run)
        hashes, source = set(), checkpoint(first, 2)
        for mesh in (*ring, layout(1, 1)):
            folder = scratch("run")
            run = convert(source, folder, ranks_of(mesh), config, mesh)
            if not expect(f"{name_of(mesh)} loads and saves it: exit code 75", run.code == 75, run):
                break
            hashes.add(Metrics(folder).headers[0]["model_hash"])
            expect(f"{name_of(mesh)}: the same weights", len(hashes) == 1, run)
            source = checkpoint(folder, 2)
        folder = scratch("run")
        run = convert(checkpoint(first, 2), folder, 1, config, layout(1, 1))
        direct = data_of(checkpoint(folder, 2))
        expect(f"{config}: loaded and saved on one rank: the same bytes", direct == data_of(checkpoint(first, 2)), run)
        expect(f"{config}: after {len(ring)} layouts, saved on one rank: the same bytes", data_of(source) == direct,
               run)


@case
def what_is_kept():
    """Catches: too many or too few that stay, or the wrong ones; a refused run that changes a file; a silent change."""
    folder = scratch("run")
    values = {**CONSTANT, "train.steps": 7, "checkpoint.interval": 1}
    run = training(folder, 2, values={**values, "checkpoint.keep_every": 3})
    expect("keep_last 2, keep_every 3: 3, 6, 7", run.code == 0 and steps_saved(folder) == [3, 6, 7], run)
    run = training(folder, 2, values={**values, "train.steps": 8, "checkpoint.keep_last": 1}, options=AUTO)
    expect("a resumed run keeps by its own rules", run.code == 0 and steps_saved(folder) == [8], run)
    expect("nothing else lies there", [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000008"],
           list(folder.rglob("*")))

    run = training(folder, 2, values={**values, "train.steps": 8, "train.eval_interval": 4}, options=AUTO)
    metrics = Metrics(folder)
    expect("a finished run: exit code 0", run.code == 0, run)
    expect("a finished run says so", says_once(run, "all 8 steps were done before"), run)
    expect("a finished run evaluates", [line["step"] for line in metrics.evals] == [8], run)
    expect("a finished run trains no step", metrics.texts("step") == list(range(1, 9)), run)

    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    run = training(folder, 2, values=values)
    expect("--resume none in a used folder: exit code 2", run.code == 2 and says_once(run, "--resume auto"), run)
    run = training(folder, 2, values={**values, "train.steps": 9, "model.intermediate_size": 96},
                   options=AUTO)
    expect("another model: exit code 2", run.code == 2, run)
    expect("another model: both values, once",
           says_once(run, r"model\.intermediate_size: 88 in the checkpoint, 96 now"), run)
    touched = [path.name for path, text in before.items() if path.name != "log.txt" and path.read_bytes() != text]
    expect("what was there is untouched", not touched, touched, run)

    changes = {"train.global_batch_size": (12, 24), "parallel.dp_outer": (1, 2), "optimizer.lr": ("0.001", "0.002"),
               "lr_schedule.type": ("constant", "cosine")}
    changed = {**values, "train.steps": 9, **{key: now for key, (_, now) in changes.items()}}
    run = training(folder, 2, values=changed, options=AUTO)
    expect("another batch, mesh, rate and schedule: exit code 0", run.code == 0, run)
    for key, (old, new) in changes.items():
        expect(f"{key} is listed once", says_once(run, rf"{re.escape(key)}: {old} in the checkpoint, {new} now"), run)
    expect("the tokens go on from those seen", Metrics(folder).steps[-1]["tokens"] == (8 * 12 + 24) * 16, run)

    run = training(folder, 2, values={**values, "train.steps": 2}, options=("--overwrite",))
    expect("--overwrite: the old ones are gone", run.code == 0 and steps_saved(folder) == [1, 2], run)


@case
def a_checkpoint_of_the_run_itself():
    """Catches: --overwrite that removes what the run is to begin from, or removes a run for one that cannot begin."""
    folder = scratch("run")
    values = {**CONSTANT, "train.steps": 2, "checkpoint.interval": 1}
    run = training(folder, 2, values=values)
    expect("two steps: exit code 0", run.code == 0, run)
    before = data_of(checkpoint(folder, 1))
    for what, options in (("--resume DIR of the run's own folder", ("--resume", checkpoint(folder, 1))),
                          ("the same with --overwrite", ("--resume", checkpoint(folder, 1), "--overwrite")),
                          ("--init-from the same", ("--init-from", checkpoint(folder, 1), "--overwrite")),
                          ("--resume of nothing, --overwrite", ("--resume", folder / "nothing", "--overwrite")),
                          ("--init-from nothing, --overwrite", ("--init-from", folder / "nothing", "--overwrite"))):
        run = training(folder, 1, values=values, options=options)
        expect(f"{what}: refused", run.code in (2, 70), run)
        if not expect(f"{what}: the checkpoints stay", data_of(checkpoint(folder, 1)) == before, run):
            training(folder, 2, values=values, options=("--overwrite",))


@case
def first_weights():
    """Catches: --init-from that takes over steps or the data position, mixes up rows, or goes before a checkpoint."""
    source = scratch("source")
    values = {**CONSTANT, "train.steps": 2, "checkpoint.interval": 2}
    run = training(source, 1, MOE, values)
    expect("the source: exit code 0", run.code == 0, run)
    run = training(source, 1, MOE, values, AUTO)
    expected = Metrics(source).headers[-1]["model_hash"]
    folder = scratch("run")
    options = (*AUTO, "--init-from", checkpoint(source, 2))
    run = training(folder, 2, MOE, {**values, **layout(1, 2, "fsdp", 2)}, options)
    metrics = Metrics(folder)
    expect("--init-from: exit code 0, said once", run.code == 0 and says_once(run, "weights from "), run)
    expect("--init-from: the same weights on another mesh", metrics.headers[-1]["model_hash"] == expected, run)
    expect("--init-from: begins at step 1 and with the first sample",
           metrics.texts("step") == [1, 2] and metrics.texts("tokens") == [128, 256], run)
    run = training(folder, 2, MOE, {**values, **layout(1, 2, "fsdp", 2)}, options)
    expect("--init-from where a run can go on: it does", says_once(run, "resuming after step 2 from "), run)


main()
