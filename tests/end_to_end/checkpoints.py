#!/usr/bin/env python3
"""A run that is interrupted and goes on is the run that was not; another mesh finds the same state, to the bit."""
import re
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
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
            saved = run.code == 70 and steps_saved(folder) == [2]
            if not expect(f"{name_of(mesh)} loads and saves it", saved, run):
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
               "lr_schedule.type": ("constant", "cosine"), "train.seq_len": (16, 8)}
    changed = {**values, "train.steps": 9, **{key: now for key, (_, now) in changes.items()}}
    run = training(folder, 2, values=changed, options=AUTO)
    expect("another batch, mesh, rate, schedule and length: exit code 0", run.code == 0, run)
    for key, (old, new) in changes.items():
        expect(f"{key} is listed once", says_once(run, rf"{re.escape(key)}: {old} in the checkpoint, {new} now"), run)
    expect("the tokens go on from those seen", Metrics(folder).steps[-1]["tokens"] == 8 * 12 * 16 + 24 * 8, run)
    expect("what another length means is said once", says_once(run, r"train\.seq_len changed, so the samples"), run)

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
def other_data():
    """Catches: data that changed since the checkpoint and are trained on without a word: windows that come twice, held
    out ones that are trained on; data that only moved, or that the config cuts otherwise, refused."""
    texts = scratch("texts")
    for name in ("b.txt", "c.txt"):
        write_text_corpus(texts / name, 3000)
    values = {**CONSTANT, "checkpoint.interval": 2, "data.type": "text"}
    folder = scratch("run")

    def go_on(steps, files=texts / "*.txt", **changes):
        return training(folder, 1, values={**values, "train.steps": steps, "data.files": f"[{files}]", **changes},
                        options=AUTO)

    def stays(what, run, *patterns):
        expect(f"{what}: exit code 2", run.code == 2, run)
        for pattern in (*patterns, r"--set data\.on_change=warn"):
            expect(f"{what}: says once /{pattern}/", says_once(run, pattern), run)
        expect(f"{what}: nothing is trained", steps_saved(folder) == [2], run)

    run = go_on(2)
    expect("two steps: exit code 0", run.code == 0, run)
    write_text_corpus(texts / "a.txt", 2000)
    stays("a file more", go_on(4), r"a\.txt is new: 2000 bytes", "training and held-out samples: 356 and 18 then")
    (texts / "a.txt").unlink()
    longer = write_text_corpus(texts / "b.txt", 4000).read_bytes()
    stays("a longer file", go_on(4), r"b\.txt has grown: 3000 bytes then, 4000 now")
    (texts / "b.txt").write_bytes(longer[1000:])
    stays("other content", go_on(4), r"b\.txt has other content: 3000 bytes, as then")
    (texts / "b.txt").unlink()
    stays("a file less", go_on(4), r"b\.txt is gone: 3000 bytes then")

    write_text_corpus(texts / "b.txt", 3000)
    moved = texts.rename(texts.parent / "moved")
    run = go_on(4, moved / "*.txt")
    expect("moved: exit code 0, no difference", run.code == 0 and "the data are not" not in run.out, run)
    write_text_corpus(moved / "a.txt", 2000)
    run = go_on(6, moved / "*.txt", **{"data.on_change": "warn"})
    expect("data.on_change: warn: exit code 0", run.code == 0, run)
    for pattern in (r"a\.txt is new: 2000 bytes", r"the run goes on all the same \(data\.on_change: warn\)"):
        expect(f"data.on_change: warn: says once /{pattern}/", says_once(run, pattern), run)
    run = go_on(8, moved / "*.txt")
    expect("what was gone on with is what is compared next", run.code == 0 and "the data are not" not in run.out, run)

    # Refused before --overwrite empties the folder in which it would go on.
    (moved / "a.txt").unlink()
    used, changed = scratch("used"), {**values, "train.steps": 10, "data.files": f"[{moved / '*.txt'}]"}
    training(used, 1, values={**changed, "train.steps": 2})
    run = training(used, 1, values=changed, options=("--resume", folder, "--overwrite"))
    expect("--resume DIR --overwrite: exit code 2", run.code == 2 and says_once(run, r"a\.txt is gone"), run)
    expect("--resume DIR --overwrite: what was there stays", steps_saved(used) == [2], run)


@case
def the_same_batch_job():
    """Catches: a batch job that runs again with the command of its first start, and empties what it has made or is
    refused; a command of its own or of another job that is not obeyed."""
    source, folder = scratch("source"), scratch("run")
    values = {**CONSTANT, "checkpoint.interval": 1, "checkpoint.keep_last": 9}

    def train(steps, *options, where=folder, **environment):
        return training(where, 1, values={**values, "train.steps": steps}, options=options, env=environment)

    def expect_begun(what, run, steps, begin=None, where=folder):
        expect(f"{what}: exit code 0", run.code == 0, run)
        resumed = says_once(run, f"resuming after step {begin} from") if begin else "resuming" not in run.out
        expect(f"{what}: " + (f"it goes on from step {begin}" if begin else "it begins anew"), resumed, run)
        expect(f"{what}: checkpoints {steps}", steps_saved(where) == steps, run)

    again = r"was made by this batch job \((slurm 7|pbs 12\.server)\)"
    expect_begun("Slurm", train(2, "--overwrite", SLURM_JOB_ID="7"), [1, 2])
    run = train(3, "--overwrite", SLURM_JOB_ID="7", SLURM_RESTART_COUNT="1")
    expect_begun("Slurm, a restart", run, [1, 2, 3], 2)
    expect("Slurm, a restart: says so", says_once(run, again + ".*--overwrite was meant .*to start anew"), run)
    expect_begun("Slurm, another command of the same start",
                 train(2, "--overwrite", SLURM_JOB_ID="7", SLURM_RESTART_COUNT="1"), [1, 2])
    expect_begun("PBS, another job", train(2, "--overwrite", PBS_JOBID="12.server"), [1, 2])
    run = train(3, "--overwrite", PBS_JOBID="12.server")
    expect_begun("PBS, the same job", run, [1, 2, 3], 2)
    expect("PBS, the same job: says so", says_once(run, again + ".*--overwrite was meant .*to start anew"), run)
    expect_begun("PBS, a successor", train(4, "--overwrite", PBS_JOBID="13.server", MESHARD_CHAIN="12.server"),
                 [1, 2, 3, 4], 3)
    expect_begun("no job", train(3, "--overwrite"), [1, 2, 3])
    expect_begun("no job, again", train(2, "--overwrite"), [1, 2])

    run = train(2, where=source)
    expect("the source: exit code 0", run.code == 0, run)
    fork = scratch("fork")
    resume = ("--resume", source)
    expect_begun("PBS, --resume DIR", train(3, *resume, where=fork, PBS_JOBID="12.server"), [3], 2, fork)
    moved = source.rename(source.parent / "gone")
    expect_begun("PBS, --resume DIR, the same job", train(4, *resume, where=fork, PBS_JOBID="12.server"), [3, 4], 3,
                 fork)
    moved.rename(source)
    run = train(5, where=fork, PBS_JOBID="12.server")
    expect("PBS, no option, the same job: exit code 2", run.code == 2 and steps_saved(fork) == [3, 4], run)
    run = train(5, *resume, where=fork, PBS_JOBID="13.server")
    expect("PBS, --resume DIR, another job: exit code 2", run.code == 2 and steps_saved(fork) == [3, 4], run)


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
