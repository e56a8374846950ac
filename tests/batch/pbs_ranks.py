#!/usr/bin/env python3
"""The ranks of a PBS job: where they are, on which cores, and that none of them outlives it. The mom sends a job's
signals to every process of its session."""
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from batch_jobs import Held, ranks_of
from pbs_jobs import pbs_of_a_clone, train_variables
from harness import case, expect, main, processes, read_bytes, says_once, scratch, steps_logged, until
from saved import steps_saved

HERE = socket.gethostname()
ONE_NODE = {"select": "1:ncpus=2:mpiprocs=2:ompthreads=1", "host": HERE}


def in_session(job):
    """The job's processes as the mom finds them."""
    found = []
    for pid, _ in processes():
        try:
            if os.getsid(pid) == job.process.pid:
                found.append(pid)
        except ProcessLookupError:
            pass
    return found


def send(job, number):
    for pid in in_session(job):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def state(pid):
    return read_bytes(f"/proc/{pid}/stat").rpartition(b") ")[2][:1].decode()


def left_of(folder):
    """The scripts, the guard, mpirun and its daemons and the ranks of the run in `folder`, but for zombies."""
    return [(pid, command) for pid, command in processes()
            if any(str(text) in " ".join(command) for text in (folder, pbs.tools)) or str(home) == cwd_of(pid)]


def cwd_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def nothing_is_left(what, folder, job):
    until(lambda: not left_of(folder), 20, f"{what}: an end of {left_of(folder)}")
    expect(f"{what}: nothing is left", True, job)


def launching(environment, **variables):
    """What jobs/mpirun.sh makes of the facts about a job: what it says, and the launcher."""
    names = {"ranks": 4, "threads": 2, "nodes": 1, "hosts": "a", "MESHARD_MPI_OPTIONS": "", "job_facts": "", **variables}
    text = "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in names.items())
    script = f"""set -euo pipefail
{text}job_fact() {{ sed -n "s/^$1 = //p" <<<"$job_facts"; }}
. jobs/mpirun.sh
pbs_cpus
set_mpirun
echo "$binding: ${{launcher[*]}}"
"""
    done = subprocess.run(["bash", "-c", script], cwd=home, capture_output=True, text=True,
                          env={**os.environ, "PATH": pbs.environment["PATH"], **environment})
    return (done.stdout + done.stderr).strip()


@case
def binding():
    """Catches: ranks bound to cores that another job's are bound to, as every mpirun counts from core 0; ranks that are
    not bound although nobody else can be there; more ranks than mpirun has cores for; a job that does not say which."""
    # Stand-ins: a node of 64 CPUs, of which a cpuset may leave some.
    tools = {"nproc": '[ "$1" = --all ] && echo 64 || echo ${CPUSET:-64}', "taskset": 'shift 2\nexec "$@"',
             "lscpu": 'echo "Thread(s) per core:  ${SIBLINGS:-1}"'}
    for name, text in tools.items():
        (pbs.tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (pbs.tools / name).chmod(0o755)
    unbound = r"^none of ours, as {}.* --map-by slot --bind-to none --mca mpi_yield_when_idle 1 -x OMP_WAIT_POLICY$"
    bound = r"{}: .* --map-by slot:PE=2 --bind-to core"
    shared = unbound.format("other jobs may be on these nodes")
    facts, exclusive = "exec_host = a/0*{}+a/1*{}+b/0*8", "Resource_List.place = scatter:excl\n"
    two, one = {"nodes": 2, "hosts": "a b"}, {"ranks": 2, "job_facts": "exec_host = a/0*4"}
    for what, pattern, variables, environment in (
            ("nothing is known", shared, {}, {}),
            ("half of a node's 8 CPUs", shared, {"job_facts": facts.format(2, 2), **two}, {}),
            ("all CPUs of a node, half of another's", shared, {"job_facts": "exec_host = a/0*8+b/0*4", **two}, {}),
            ("all CPUs", bound.format("all 8 CPUs of its nodes"), {"job_facts": facts.format(4, 4), **two}, {}),
            ("place=excl", bound.format("its nodes for itself"), {"job_facts": exclusive + facts.format(1, 1), **two}, {}),
            ("its own options", r"^as MESHARD_MPI_OPTIONS has it: .*--report-bindings --bind-to socket$",
             {"MESHARD_MPI_OPTIONS": "--bind-to socket"}, {}),
            ("a cpuset of its own", bound.format("4 CPUs of a node, and no others"), one, {"CPUSET": "4"}),
            ("of cores with two threads", bound.format("8 CPUs of a node, and no others"), one,
             {"CPUSET": "8", "SIBLINGS": "2"}),
            ("a cpuset that others are in, too", shared, one, {"CPUSET": "8"}),
            ("CPUs that are threads, all asked for", unbound.format("its ranks want 8 cores of a node, and 4 are there"),
             {"job_facts": "exec_host = a/0*8"}, {"CPUSET": "8", "SIBLINGS": "2"}),
            ("the same, told so", bound.format("all 8 CPUs of its nodes"),
             {"job_facts": "exec_host = a/0*8", "MESHARD_MPI_OPTIONS": "--use-hwthread-cpus"},
             {"CPUSET": "8", "SIBLINGS": "2"})):
        text = launching(environment, **variables)
        expect(f"{what}: {pattern}", re.search(pattern, text), text)
    for name in tools:
        (pbs.tools / name).unlink()


@case
def nodes_and_wrapper():
    """Catches: ranks that all land on the first node; a call of the binary without the site's wrapper; ranks that are
    not bound and take all cores of a node for theirs, or spin on cores that others want."""
    folder, log = scratch("run"), pbs.tools / "wrapped"
    wrapper = pbs.tools / "wrapper"
    wrapper.write_text(f'#!/bin/sh\n[ "$1" = -w ] || exit 9\nshift\n'
                       f'echo "${{NODE-here}} ${{OMPI_COMM_WORLD_RANK-none}} $1 $2 $OMP_WAIT_POLICY" >>{log}\n'
                       'exec "$@"\n')
    wrapper.chmod(0o755)
    job = pbs.start("jobs/pbs/train.pbs", train_variables(folder, 2), extra={
        "MESHARD_MPI_OPTIONS": "", "MESHARD_WRAPPER": f"{wrapper} -w", "PREFLIGHT": "1"}).wait()
    expect("exit code 0", job.code == 0, job)
    calls = sorted(log.read_text().splitlines())
    expect("each rank on its node, and every call is wrapped", calls == sorted(
        ["here none build/meshard plan passive"] +
        [f"node{rank + 1} {rank} build/meshard {command} passive"
         for rank in (0, 1) for command in ("preflight", "train")]), calls, job)
    expect("it says that nothing is bound", says_once(job, "binding: none of ours"), job)
    expect("one thread a rank, as ompthreads says", says_once(job, "fsdp; 1 threads a rank"), job)
    job = pbs.start("jobs/pbs/train.pbs", train_variables(folder, 2, {"run.threads": 2}), extra={
        "MESHARD_MPI_OPTIONS": ""}).wait()
    expect("run.threads of the config wins", job.code == 0 and says_once(job, "fsdp; 2 threads a rank"), job)
    job = pbs.start("jobs/pbs/train.pbs", train_variables(folder, 2), extra={
        "MESHARD_WRAPPER": "srun --container-image=x"}).wait()
    expect("an srun around mpirun's ranks is refused", job.code == 2 and says_once(
        job, "MESHARD_WRAPPER is an srun: MESHARD_LAUNCHER must be srun"), job)


@case
def suspended_and_ended():
    """Catches: ranks outside of the job's session, which train on while the job is suspended; a TERM to all processes
    (qdel) over which mpirun kills the ranks, or loses its daemons of other nodes."""
    folder = scratch("run")
    job = pbs.start("jobs/pbs/train.pbs", train_variables(folder, 1000000), **ONE_NODE)
    until(lambda: steps_logged(folder) >= 2, 120, "a step", job)
    send(job, signal.SIGSTOP)
    ranks = list(ranks_of(folder).values())
    until(lambda: all(state(pid) == "T" for pid in in_session(job)), 10, "a session that stands still", job)
    expect("suspended: both ranks stand still", len(ranks) == 2 and all(state(pid) == "T" for pid in ranks), job)
    steps = steps_logged(folder)
    send(job, signal.SIGCONT)
    until(lambda: steps_logged(folder) > steps + 1, 60, "steps after it is resumed", job)
    end_by_term("one node", folder, job)
    for what, extra in (("two nodes", {}), ("two nodes, an agent of the site's", {
            "OMPI_MCA_plm_rsh_agent": "false", "MESHARD_MPI_OPTIONS": f"--mca plm_rsh_agent {pbs.tools}/remote"})):
        folder = scratch("run")
        job = pbs.start("jobs/pbs/train.pbs", train_variables(folder, 1000000), extra=extra)
        until(lambda: steps_logged(folder) >= 2, 120, "a step", job)
        end_by_term(what, folder, job)

    # An mpirun that a pending TERM ends when all ranks are done.
    broken = pbs.tools / "mpirun"
    broken.write_text(f"""#!/bin/bash
trap 'kill -USR1 $run' USR1
{shutil.which("mpirun")} "$@" & run=$!
while kill -0 $run 2>/dev/null; do wait $run; status=$?; done
exit $((status == 75 ? 143 : status))
""")
    broken.chmod(0o755)
    folder = scratch("run")
    job = pbs.start("jobs/pbs/train.pbs", train_variables(folder, 1000000), **ONE_NODE)
    until(lambda: steps_logged(folder) >= 2, 120, "a step", job)
    end_by_term("mpirun ends with 143", folder, job)
    broken.unlink()


def end_by_term(what, folder, job):
    send(job, signal.SIGTERM)
    job.wait(60)
    expect(f"{what}, TERM to all: exit code 75, a checkpoint", job.code == 75 and len(steps_saved(folder)) == 1, job)
    nothing_is_left(f"{what}, TERM to all", folder, job)


@case
def killed():
    """Catches: ranks that train on after the job (qdel -W force, a walltime with a stopped rank), on this node or
    another; a guard that lives on."""
    for what, shape in (("on one node", ONE_NODE), ("on other nodes", {})):
        folder = scratch("run")
        job = pbs.start("jobs/pbs/train.pbs", train_variables(folder, 1000000), **shape)
        with Held(folder, 2):
            send(job, signal.SIGKILL)
            nothing_is_left(f"KILL to the session, a rank stopped, {what}", folder, job)
    folder = scratch("run")
    job = pbs.start("jobs/pbs/train.pbs", train_variables(folder, 1000000), **ONE_NODE)
    with Held(folder, 2):
        job.send(signal.SIGKILL)
        nothing_is_left("KILL to the script, a rank stopped", folder, job)


with pbs_of_a_clone() as pbs:
    home = pbs.home
    main()
