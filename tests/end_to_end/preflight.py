#!/usr/bin/env python3
"""meshard preflight as it is run before a job: on one rank, on four, and on two nodes that are two host names here."""
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import BINARY, Run, Skip, case, expect, main, meshard, mpirun, scratch, sets

MOE = "configs/tests/moe.yaml"
HYBRID = ("--config", MOE, *sets({"parallel.dp_outer": 2, "parallel.strategy": "hsdp", "parallel.expert": 2,
                                  "run.threads": 1}))
SHORT = ("--seconds", "0.5")


@case
def alone():
    """Catches: a preflight that needs mpirun or several ranks."""
    run = meshard("preflight")
    expect("one rank without mpirun: exit code 0", run.code == 0, run)
    expect("it says that there is nothing to measure", "one rank: no axis to measure" in run.out, run)


@case
def four_ranks():
    """Catches: an axis of the config's mesh left out, output of more than one rank, a preflight that lasts too long."""
    run = Run(mpirun(4, [BINARY, "preflight", *HYBRID, "--json"])).wait(60)
    if not expect("four ranks: exit code 0", run.code == 0, run):
        return
    report = json.loads(run.out)
    expect("it took less than 20 s", report["seconds"] < 20, report["seconds"])
    expect("every rank has its place", [place["rank"] for place in report["places"]] == [0, 1, 2, 3], run)
    expect("threads are those of the config", {place["threads"] for place in report["places"]} == {1}, run)
    cores = sorted(os.sched_getaffinity(0))
    expect("cores are those of this machine", all(place["cores"] == cores for place in report["places"]), run)
    measured = [(each["axis"], each["ranks"], each["operation"]) for each in report["bandwidths"]]
    operations = ("all_gather", "reduce_scatter")
    expected = [(axis, ranks, operation) for axis, ranks in (("dp_outer", 2), ("dp_shard", 2), ("world", 4))
                for operation in operations]
    expect("every axis and operation", list(dict.fromkeys(measured)) == expected, run)
    sizes = [each["wanted_bytes"] for each in report["bandwidths"]]
    expect("at the sizes of the default", sizes[:2] == [1 << 12, 1 << 20], run)
    crowded = [warning for warning in report["warnings"] if "run 4 threads" in warning]
    expect("too few cores are a warning, and not otherwise", len(crowded) == (len(cores) < 4), run)

    run = Run(mpirun(2, [BINARY, "preflight", *SHORT, "--sizes", "4K,64K"])).wait(60)
    expect("tables, without a config: exit code 0", run.code == 0, run)
    rows = [line.split() for line in run.out.splitlines() if line.startswith("dp_shard")]
    expect("a row for each operation and size, once",
           [row[2:4] for row in rows] == [[operation, size] for operation in operations for size in ("4", "64")], run)


@case
def hardware():
    """Catches: a hardware file that is not written, that `plan` does not read, or that lacks what was measured."""
    file = scratch("hardware.yaml")
    run = Run(mpirun(2, [BINARY, "preflight", *SHORT, "--write-hardware", file])).wait(60)
    if not expect("--write-hardware: exit code 0", run.code == 0, run):
        return
    text = file.read_text()
    expect("ranks, a node's link and the core's part are in it, and no network",
           all(part in text for part in ("ranks_per_node: 2", "\nnode:\n", "\ncore:\n")) and "network" not in text, text)
    run = meshard("plan", MOE, "--ranks", 2, "--timeline", "--json", "--hardware", file)
    expect("plan reads it", run.code == 0 and json.loads(run.out)["timeline"]["step_s"] > 0, run)


def on_two_nodes(*words, more=()):
    """Starts ranks on the nodes n1 and n2: this machine by two names."""
    agent = scratch("agent")
    agent.write_text('#!/bin/sh\nhost=$1; shift\nexec unshare --uts sh -c "hostname $host && exec $*"\n')
    agent.chmod(0o755)
    return Run(["mpirun", "-n", "4", "--host", "n1:2,n2:2", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent,
                "--mca", "mpi_yield_when_idle", "1", "--bind-to", "none", *words, BINARY, "preflight", *HYBRID, *SHORT, *more],
               env={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}).wait(90)


@case
def two_nodes():
    """Catches: axes over nodes that are not noticed, and advice that does not mend them."""
    if subprocess.run(["unshare", "--uts", "hostname", "n1"], capture_output=True).returncode != 0:
        raise Skip("a second host name needs root (unshare --uts)")
    run = on_two_nodes("--map-by", "node")
    expect("round robin: exit code 0", run.code == 0, run)
    expect("two nodes", "4 ranks on 2 nodes" in run.out and "\nn1 " in run.out and "\nn2 " in run.out, run)
    expect("both axes are named", "warning: dp_shard (size 2) spans nodes in 2 of 2 groups" in run.out and
           "expert (size 2) spans nodes in 2 of 2 groups" in run.out, run)
    expect("with the mapping that mends it", "mpirun -n 4 --map-by ppr:2:node on 2 nodes" in run.out, run)
    run = on_two_nodes("--map-by", "node", more=("--write-hardware", scratch("unused.yaml")))
    expect("a hardware file of ranks dealt out is refused", run.code == 2 and "fill node after node" in run.err, run)
    file = scratch("nodes.yaml")
    run = on_two_nodes("--map-by", "ppr:2:node", more=("--write-hardware", file))
    expect("a hardware file of two nodes has both links", run.code == 0 and
           all(part in file.read_text() for part in ("ranks_per_node: 2", "\nnode:\n", "\nnetwork:\n")), run)
    run = on_two_nodes("--map-by", "ppr:2:node")
    expect("with that mapping: exit code 0", run.code == 0, run)
    expect("with that mapping: no axis is named", "2 nodes" in run.out and "spans" not in run.out, run)


@case
def bad_input():
    """Catches: nonsense that starts a measurement, or is told once per rank."""
    for what, words, part in (
            ("a size of nothing", ("--sizes", "0"), "--sizes: Value 0 not in range"),
            ("a size without a number", ("--sizes", "4K,many"), "--sizes"),
            ("--set without a config", ("--set", "run.threads=1"), "--set requires --config"),
            ("a config that is not there", ("--config", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
            ("a mesh of other ranks", ("--config", MOE, "--set", "parallel.dp_outer=3"), "parallel.dp_outer")):
        run = Run(mpirun(2, [BINARY, "preflight", *words])).wait(60)
        expect(f"{what}: exit code 2", run.code == 2, run)
        expect(f"{what}: said once", (run.out + run.err).count(part) == 1, run)


main()
