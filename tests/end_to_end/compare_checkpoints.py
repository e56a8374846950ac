#!/usr/bin/env python3
"""meshard compare --checkpoints on real runs: other meshes are the same, faults and other seeds are not, and a change
that Python makes is found where it is."""
import shutil
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import SOURCE, Skip, case, expect, main, meshard, scratch, training
from saved import CONSTANT, checkpoint

MOE = "configs/tests/moe.yaml"
VALUES = {**CONSTANT, "train.steps": 4, "checkpoint.interval": 2}
EXPERTS = "model.model.layers.1.mlp.experts.down_proj"

# Reads a checkpoint as Python's tensors and saves it in one chunk a tensor: as it is, and with three changes.
RESAVE = """
import sys, torch, torch.distributed.checkpoint as dcp
from pathlib import Path
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
source, same, changed = sys.argv[1:]
state = {}
_load_state_dict(state, dcp.FileSystemReader(source), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
dcp.save(state, checkpoint_id=same, no_dist=True)
state["model"]["model.layers.1.mlp.experts.down_proj"].view(torch.int32)[5, 10, 3] ^= 1 << 23
state["optimizer"]["param_groups"][0]["lr"] *= 2
del state["model"]["lm_head.weight"]
dcp.save(state, checkpoint_id=changed, no_dist=True)
"""


def run_of(ranks=1, **more):
    folder = scratch("run")
    run = training(folder, ranks, MOE, {**VALUES, **{key.replace("__", "."): value for key, value in more.items()}})
    expect(f"a run on {ranks} ranks: exit code 0", run.code == 0, run)
    return folder


def compare(a, b, *options):
    return meshard("compare", a, b, "--checkpoints", *options)


def first_line_with(run, part):
    return next((line for line in run.out.splitlines() if part in line), "")


@case
def runs():
    """Catches: rounding of another mesh taken for a difference, or a real difference for rounding."""
    one, four = run_of(), run_of(4, parallel__expert=2, parallel__dp_outer=2, parallel__strategy="hfsdp")
    run = compare(one, four)
    expect("another mesh: the same, exit code 0", run.code == 0, run)
    expect("both steps were compared, after the metrics",
           all(part in run.out for part in ("4 steps compared\nsame\n", "\nstep 2: same, ", "\nstep 4: same, ")), run)
    run = compare(one, four, "--exact")
    expect("another mesh, --exact: exit code 3", run.code == 3, run)
    run = compare(one, one, "--exact", "--metric", "loss")
    expect("the run itself, --exact: exit code 0", run.code == 0, run)

    fault = run_of(regression__fault="update_per_microbatch", checkpoint__interval=1, checkpoint__keep_last=3)
    run = compare(one, fault)
    expect("a fault: exit code 3", run.code == 3, run)
    steps = [step for step in (1, 2, 3, 4) if f"\nstep {step}: " in run.out]
    expect("steps of both only: 2 and 4", steps == [2, 4], run)
    expect("a fault of the expert bias is named with its layer",
           first_line_with(run, "layers.1.mlp.gate.e_score_correction_bias").count(" expert") == 1, run)

    seed = run_of(run__seed=22)
    run = compare(checkpoint(one, 4), checkpoint(seed, 4))
    expect("another seed, checkpoints alone: exit code 3", run.code == 3, run)
    expect("it leads with the step and the tensor",
           run.out.splitlines()[2].startswith("first difference: step 4, model."), run)
    expect("there is no metrics part", "steps compared" not in run.out, run)
    run = compare(checkpoint(one, 2), one)
    expect("a checkpoint against its run: that step, exit code 0", run.code == 0 and "step 2: same" in run.out, run)
    run = compare(checkpoint(one, 2), checkpoint(one, 4))
    expect("two steps of a run: both are said, exit code 3",
           run.code == 3 and "first difference: step 2 against step 4, " in run.out, run)


@case
def python():
    """Catches: a checkpoint of PyTorch's that cannot be compared; a changed bit, value or key that is not found."""
    python = SOURCE / ".venv/bin/python"
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    if not python.exists() or subprocess.run([python, "-c", find]).returncode != 0:
        raise Skip("no Python with torch in .venv")
    source, same, changed = checkpoint(run_of(2), 4), scratch("same"), scratch("changed")
    done = subprocess.run([python, "-W", "ignore", "-c", RESAVE, source, same, changed], capture_output=True, text=True)
    expect("Python saves it twice", done.returncode == 0, done.stderr)
    run = compare(source, same, "--exact")
    expect("saved by Python: the same, exit code 0", run.code == 0 and "\nstep 4: same, " in run.out, run)
    run = compare(source, changed)
    expect("changed by Python: exit code 3", run.code == 3, run)
    expect("the element, layer and expert", first_line_with(run, "first difference: ").startswith(
        f"first difference: step 4, {EXPERTS}[5, 10, 3], layer 1, expert 5: "), run)
    rows = [line.split() for line in run.out.splitlines() if line.startswith(EXPERTS)]
    expect("one row, of one element", [row[1:4] for row in rows] == [["1", "of", "6144"]], run)
    expect("the key that is gone", "\nonly in a\n  model.lm_head.weight\n" in run.out, run)
    expect("the rate", "\n  optimizer.param_groups.0.lr: 0.001 against 0.002\n" in run.out, run)


@case
def bad_input():
    """Catches: what cannot be compared that ends in 0, 3 or 70, or without the way out."""
    folder = run_of()
    ours = checkpoint(folder, 2)
    other = scratch("other")
    shutil.copytree(folder, other)
    shutil.move(checkpoint(other, 2), checkpoint(other, 6))
    shutil.rmtree(checkpoint(other, 4))
    empty = scratch("empty")
    shutil.copytree(folder, empty, ignore=shutil.ignore_patterns("step-*"))
    partial = scratch("step-00000002.partial")
    shutil.copytree(ours, partial)
    for what, words, part in (
            ("a checkpoint without --checkpoints", (ours, ours), "add --checkpoints"),
            ("--metric of checkpoints", (ours, ours, "--checkpoints", "--metric", "loss"), "--metric is about runs"),
            ("no common step", (folder, other, "--checkpoints"), "has 2, 4, "),
            ("no checkpoint at all", (folder, empty, "--checkpoints"), "has no complete one"),
            ("nothing", (ours, empty / "nothing", "--checkpoints"), "nothing is no checkpoint"),
            ("a save that never ended", (ours, partial, "--checkpoints"), "never ended")):
        run = meshard("compare", *words)
        expect(f"{what}: exit code 2", run.code == 2, run)
        expect(f"{what}: it says why", part in run.err, run)


def half(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:1000])


def flip(folder):
    data = bytearray((folder / "__0_0.distcp").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "__0_0.distcp").write_bytes(data)


def leads_nowhere(folder):
    (folder / "meshard.json").unlink()
    (folder / "meshard.json").symlink_to("nowhere")


@case
def damage():
    """Catches: damage taken for a difference (3) or for a wrong command (2), in any file of a checkpoint; a lost
    meshard.json that makes one PyTorch's."""
    folder = run_of()
    for what, harm, name in (("half the data", half("__0_0.distcp"), ".distcp"), ("one bit", flip, ".distcp"),
                             ("half of the index", half(".metadata"), ".metadata"),
                             ("a meshard.json that leads nowhere", leads_nowhere, "meshard.json")):
        broken = scratch("broken")
        shutil.copytree(folder, broken)
        harm(checkpoint(broken, 4))
        for named, words in (("as b", (checkpoint(folder, 4), checkpoint(broken, 4))),
                             ("as a", (checkpoint(broken, 4), checkpoint(folder, 4))), ("of runs", (folder, broken))):
            run = compare(*words)
            expect(f"{what}, {named}: exit code 70, with the file",
                   run.code == 70 and f"{checkpoint(broken, 4)}/" in run.err and name in run.err, run)


main()
