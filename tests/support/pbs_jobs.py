"""A PBS for the tests of the scripts: runs them as OpenPBS 23.06 runs a job, the body of the script with PBS_NODEFILE and
PBS_* in its environment. qstat, qsub, qdel and pbsnodes are stand-ins."""
import contextlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from batch_jobs import TINY, VALUES, as_root, clone
from harness import Run, scratch, sets

SELECT = "2:ncpus=1:mpiprocs=1:ompthreads=1"
QSTAT = """#!/bin/sh
[ "$1" = -Q ] && { printf '%s\\n' 'Queue Max Tot' '----- --- ---' 'workq 0 0' 'long 0 0'; exit 0; }
[ "$1" = -B ] && { echo '    default_queue = '"$DEFAULT_QUEUE" | grep -v '= $'; exit 0; }
cat "$QSTAT_FACTS"
"""
QSUB = """#!/usr/bin/env python3
import json, os, sys
log = os.environ["QSUB_LOG"]
job = {"words": sys.argv[1:], "environment": dict(os.environ), "pid": os.getpid()}
open(log, "a").write(json.dumps(job) + "\\n")
while os.path.exists(os.path.dirname(log) + "/hold"):
    pass
print("2.pbs")
"""
QDEL = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/deleted"
"""
PBSNODES = """#!/bin/sh
shift
for host; do printf '%s\\n     resources_available.host = %s\\n     resources_available.ncpus = 8\\n\\n' $host $host; done
"""
# Instead of ssh HOST. Two daemons of one job would share a folder, which crashes them at times.
REMOTE = """#!/bin/sh
export TMPDIR=$(mktemp -d --tmpdir="$(dirname "$0")") NODE=$1
shift
exec sh -c "$*"
"""


class Pbs:
    """Jobs, one after the other."""

    def __init__(self, home, tools):
        self.home, self.tools = home, tools
        tools.mkdir()
        for name, text in (("qstat", QSTAT), ("qsub", QSUB), ("qdel", QDEL), ("pbsnodes", PBSNODES),
                           ("remote", REMOTE)):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        self.environment = {"PATH": f"{tools}:{os.environ['PATH']}", "QSTAT_FACTS": str(tools / "facts"),
                            "QSUB_LOG": str(tools / "submitted"), "OMPI_MCA_plm_rsh_agent": str(tools / "remote"),
                            "MESHARD_MPI_OPTIONS": "--bind-to none"}

    def start(self, script, variables, select=SELECT, walltime="01:00:00", threads=1, extra=None, facts=None,
              host="node{}"):
        """Starts the script as a job: a copy of it, in another folder, with the variables of its qsub -v. `facts`: what
        qstat -f tells besides. `host`: the name of a node, of its number."""
        spool = scratch("spool")
        spool.mkdir()
        chunks, processes = int(select.split(":")[0]), int(re.search(r"mpiprocs=(\d+)", select)[1])
        (spool / "nodes").write_text("".join(f"{host.format(n + 1)}\n" * processes for n in range(chunks)))
        (self.tools / "facts").write_text(
            f"Job Id: 1.pbs\n    Job_Name = tiny\n    Account_Name = physics\n    Resource_List.ncpus = {chunks}\n"
            f"    Resource_List.place = scatter\n    Resource_List.select = {select}\n"
            f"    Resource_List.walltime = {walltime}\n"
            + "".join(f"    {name} = {value}\n" for name, value in {"run_count": 1, **(facts or {})}.items()))
        (self.tools / "submitted").unlink(missing_ok=True)
        shutil.copy(self.home / script, spool / "1.pbs.SC")
        return Run(["bash", spool / "1.pbs.SC"], cwd=spool, env={
            **self.environment, "PBS_O_WORKDIR": str(self.home), "PBS_JOBID": "1.pbs", "PBS_JOBNAME": "tiny",
            "PBS_NODEFILE": str(spool / "nodes"), "PBS_O_QUEUE": "workq", "PBS_QUEUE": "workq",
            "PBS_ENVIRONMENT": "PBS_BATCH", "OMP_NUM_THREADS": str(threads), "NCPUS": str(threads),
            **variables, **(extra or {})})

    def qsubs(self):
        return [json.loads(line)["pid"] for line in (self.tools / "submitted").read_text().splitlines()]

    def submitted(self):
        """The words of each qsub so far, and the variables that its -v carries on."""
        text = (self.tools / "submitted").read_text() if (self.tools / "submitted").exists() else ""
        jobs = []
        for line in text.splitlines():
            job = json.loads(line)
            names = job["words"][job["words"].index("-v") + 1].split(",")
            jobs.append((job["words"], {name: job["environment"][name] for name in names}))
        return jobs


@contextlib.contextmanager
def pbs_of_a_clone():
    """A PBS, and a clone to submit from; both are gone afterwards."""
    as_root()
    with tempfile.TemporaryDirectory(prefix="meshard-pbs-") as place:
        yield Pbs(clone(Path(place) / "clone"), Path(place) / "tools")


def train_variables(folder, steps, values=None):
    words = ["--run-dir", str(folder), *sets({**VALUES, "train.steps": steps, **(values or {})})]
    return {"CONFIG": TINY, "OPTIONS": " ".join(words)}
