#!/usr/bin/env python3
"""The PBS scripts, run as OpenPBS 23.06 runs a job, with stand-ins: qstat tells a job's attributes, qsub writes down what
was submitted, and the test runs that as the next job."""
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from batch_jobs import TINY, VALUES, Held, ranks_of, write_sweep
from pbs_jobs import SELECT, pbs_of_a_clone, train_variables
from harness import (SOURCE, Metrics, Run, case, expect, main, meshard, says_once, scratch, sets, steps_logged, training,
                     until)
from saved import checkpoint, data_of, steps_saved

# What the scripts use of PBS, and where its manual defines it: man pages of OpenPBS 23.06 (doc/man1), and the books.
MANUAL = {
    "-A": "qsub(1B), OPTIONS, -A account_string", "-J": "qsub(1B), OPTIONS, -J range",
    "-N": "qsub(1B), OPTIONS, -N name", "-j": "qsub(1B), OPTIONS, -j join", "-l": "qsub(1B), OPTIONS, -l resource_list",
    "-q": "qsub(1B), OPTIONS, -q destination", "-r": "qsub(1B), OPTIONS, -r y|n",
    "-v": "qsub(1B), OPTIONS, -v variable_list",
    "select": "qsub(1B), Requesting resources and placing jobs", "place": "qsub(1B), Requesting resources and placing jobs",
    "ncpus": "pbs_resources(7B), Resources Built Into PBS", "mpiprocs": "pbs_resources(7B), Resources Built Into PBS",
    "ompthreads": "pbs_resources(7B), Resources Built Into PBS", "walltime": "pbs_resources(7B), Resources Built Into PBS",
    "ngpus": "Administrator's Guide, custom resources for GPUs",
    "-M": "qsub(1B), OPTIONS, -M user_list", "-P": "qsub(1B), OPTIONS, -P project", "-S": "qsub(1B), OPTIONS, -S path_list",
    "-W": "qsub(1B), OPTIONS, -W attribute_list", "-e": "qsub(1B), OPTIONS, -e path", "-k": "qsub(1B), OPTIONS, -k keep",
    "-m": "qsub(1B), OPTIONS, -m mail_events", "-o": "qsub(1B), OPTIONS, -o path", "-p": "qsub(1B), OPTIONS, -p priority",
    "PBS_ARRAY_INDEX": "User's Guide, Job Arrays; Reference Guide, PBS Environment Variables",
    "PBS_JOBID": "qsub(1B), ENVIRONMENT VARIABLES", "PBS_JOBNAME": "qsub(1B), ENVIRONMENT VARIABLES",
    "PBS_NODEFILE": "qsub(1B), ENVIRONMENT VARIABLES; pbs_resources(7B), mpiprocs",
    "PBS_O_QUEUE": "qsub(1B), ENVIRONMENT VARIABLES", "PBS_O_WORKDIR": "qsub(1B), ENVIRONMENT VARIABLES",
    "OMP_NUM_THREADS": "pbs_resources(7B), ompthreads",
    **dict.fromkeys(("Account_Name", "Error_Path", "Join_Path", "Keep_Files", "Mail_Points", "Mail_Users", "Output_Path",
                     "Priority", "Rerunable", "Resource_List", "Shell_Path_List", "Variable_List", "group_list", "project",
                     "exec_host", "run_count", "schedselect"), "pbs_job_attributes(7B)"),
    "default_queue": "pbs_server_attributes(7B)",
    "qstat -f -w": "qstat(1B), Job, Queue, and Server Status Options", "qstat -f": "qstat(1B), Job Status in Long Format",
    "pbsnodes -H": "pbsnodes(8B), OPTIONS, -H host", "resources_available": "pbs_node_attributes(7B)",
    "qstat -Q": "qstat(1B), Queue Status in Default Format", "qstat -B -f": "qstat(1B), Server Status in Long Format",
}


@case
def a_job():
    """Catches: ranks other than the nodefile's lines, a walltime that the run does not know, an unbound rank."""
    folder = scratch("run")
    job = pbs.start("jobs/pbs/train.pbs", train_variables(folder, 2), extra={"MESHARD_MPI_OPTIONS": ""},
                    facts={"Resource_List.place": "scatter:excl"}).wait()
    expect("exit code 0", job.code == 0, job)
    for what, pattern in (("ranks, cores, nodes", r"job 1\.pbs, restart 0: 2 ranks x 1 core on 2 nodes: node1 node2"),
                          ("the binding", r"MCW rank 1 bound to"), ("the walltime", r"walltime 3600 s: train\.max_minutes"),
                          ("the map of ranks", r"\n  rank 0-1 "), ("the end", r"meshard: done: results lie in")):
        expect(f"it says once: {what}", says_once(job, pattern), job)
    minutes = float(re.search(r"max_minutes: ([\d.]+)", (folder / "config.yaml").read_text())[1])
    expect(f"train.max_minutes is the walltime less 300 s: {minutes}", 54 <= minutes <= 55, job)
    expect("nothing was submitted", not pbs.submitted())


@case
def successor():
    """Catches: a successor with other resources, another project or priority, without the settings and variables that
    came with the job, or that begins anew; sums that the server makes of select, given as if they were asked for."""
    steps = 20
    folder, reference = scratch("run"), scratch("uninterrupted")
    values = {"checkpoint.interval": steps}
    run = training(reference, 2, values={**VALUES, **values, "train.steps": steps})
    expect("uninterrupted: exit code 0", run.code == 0, run)
    variables = {**train_variables(folder, steps, values), "MESHARD_SUBMIT_OPTIONS": "-P other -lgpu=b -W depend=x -p 5",
                 "MY_FABRIC": "a,b c", "MESHARD_WRAPPER": ""}
    job = pbs.start("jobs/pbs/train.pbs", variables, facts={
        "Resource_List.mem": "8gb", "Resource_List.nodect": "2", "Resource_List.mpiprocs": "2", "Resource_List.gpu": "a,b",
        "schedselect": f"{SELECT}:mem=4gb", "project": "climate", "Priority": "-7", "Mail_Points": "abe",
        "Mail_Users": "me@here", "Join_Path": "oe", "Keep_Files": "n", "Output_Path": "host:/logs/mine",
        "Error_Path": "host:/clone/tiny.e1", "Rerunable": "False", "group_list": "staff",
        "Variable_List": "PBS_O_SYSTEM=Linux,CONFIG=x,MY_FABRIC=a\\,b c,NOT_HERE=1,PBS_O_HOME=/"})
    with Held(folder, 3):
        job.send(signal.SIGUSR1)
        until(lambda: "asked the run to stop" in job.err, 30, "launch.sh to hear of it", job)
    job.wait()
    expect("asked to stop: exit code 0, as there is a successor", job.code == 0, job)
    expect("a checkpoint was saved", len(steps_saved(folder)) == 1 and steps_saved(folder)[0] < steps, job)
    expect("it says so", says_once(job, "submitting restart 1 of at most 20") and says_once(job, "job 2.pbs goes on"), job)
    (words, variables), = pbs.submitted()
    expect("all that the job has is carried on, the site's further options too, and nothing twice", words[:-3] == [
        "-N", "tiny", "-l", f'select={SELECT},place=scatter,walltime=01:00:00,gpu="a,b"', "-W", "depend=x", "-A", "physics",
        "-P", "climate", "-p", "-7", "-m", "abe", "-M", "me@here", "-j", "oe", "-o", "host:/logs/mine", "-W",
        "group_list=staff", "-r", "n", "-q", "workq"], words)
    expected = {"MESHARD_MPI_OPTIONS": "--bind-to none", "MESHARD_RESTARTS": "1", "MESHARD_CHAIN": "1.pbs", "CONFIG": TINY,
                "MY_FABRIC": "a,b c", "MESHARD_SUBMIT_OPTIONS": "-P other -lgpu=b -W depend=x -p 5"}
    expect("and the variables that came with the job", expected.items() <= variables.items() and
           not any(name.startswith("PBS_") for name in variables), variables)
    job = pbs.start(words[-1], variables).wait()
    expect("the successor: exit code 0, resumed", job.code == 0 and says_once(job, "resuming after step"), job)
    expect("the successor: restart 1", says_once(job, "job 1.pbs, restart 1:"), job)
    run = meshard("compare", folder, reference, "--exact", "--metric", "loss", "--metric", "grad_norm")
    expect("losses and gradient norms are the uninterrupted run's, bitwise", run.code == 0, run)
    expect("every step stands once", Metrics(folder).texts("step") == list(range(1, steps + 1)), job)
    expect("the last checkpoints have the same bytes",
           data_of(checkpoint(folder, steps)) == data_of(checkpoint(reference, steps)) != {}, job)


@case
def run_again_by_the_server():
    """Catches: a rerun (node failure, qrerun) that takes itself for a first start: --overwrite would delete what the
    first start saved, --resume DIR be refused. A rerun has the variables of the first start."""
    folder = scratch("run")
    variables = train_variables(folder, 100, {"checkpoint.interval": 2, "checkpoint.async": "false"})
    variables["OPTIONS"] += " --overwrite"
    old = training(folder, values={**VALUES, "train.steps": 3, "checkpoint.interval": 3})
    expect("an earlier run's checkpoint is there", old.code == 0 and steps_saved(folder) == [3], old)
    old_folder = folder.with_name("earlier")
    shutil.copytree(folder, old_folder)
    job = pbs.start("jobs/pbs/train.pbs", variables, facts={"run_count": "1"})
    until(lambda: "resuming" in job.out or steps_logged(folder) >= 1 and 3 not in steps_saved(folder), 120, "a step", job)
    with Held(folder, 5):
        expect("first start: --overwrite holds", "resuming" not in job.out and 3 not in steps_saved(folder), job)
        job.kill()
        for pid in ranks_of(folder).values():
            os.kill(pid, signal.SIGKILL)
    saved = steps_saved(folder)[-1]
    job = pbs.start("jobs/pbs/train.pbs", variables, facts={"run_count": "2"}).wait()
    expect("the rerun: counted", says_once(job, "job 1.pbs, restart 1:"), job)
    expect(f"the rerun: goes on after step {saved}", job.code == 0 and says_once(job, f"resuming after step {saved} "), job)
    options = variables["OPTIONS"].replace("--overwrite", f"--resume {old_folder}")
    job = pbs.start("jobs/pbs/train.pbs", {**variables, "OPTIONS": options, "MESHARD_RESTARTS": "2"},
                    facts={"run_count": "3"}).wait()
    expect("a rerun with --resume DIR: goes on, too", job.code == 0 and says_once(job, "resuming after step 100 "), job)
    expect("its restarts are on top of those of earlier jobs", says_once(job, "job 1.pbs, restart 4:"), job)


@case
def walltime():
    """Catches: a run that waits for PBS to kill it; one that is submitted again although it can make no progress, or
    oftener than allowed."""
    folder = scratch("run")
    variables = {**train_variables(folder, 1000000), "MESHARD_STOP_BEFORE_S": "1000"}
    job = pbs.start("jobs/pbs/train.pbs", variables, walltime="00:00:20").wait()
    expect("ended by itself, with a successor", job.code == 0 and len(pbs.submitted()) == 1, job)
    expect("because of train.max_minutes, half the walltime", says_once(job, r"train\.max_minutes is over"), job)
    expect("with a checkpoint", steps_saved(folder) == [Metrics(folder).steps[-1]["step"]], job)
    job = pbs.start("jobs/pbs/train.pbs", train_variables(scratch("run"), 100, {"train.max_minutes": "0.0000001"})).wait()
    expect("no time for a step: exit code 70, nothing submitted", job.code == 70 and not pbs.submitted(), job)
    folder = scratch("run")
    job = pbs.start("jobs/pbs/train.pbs", {**train_variables(folder, 1000000), "MESHARD_RESTARTS": "3",
                                           "MESHARD_MAX_REQUEUES": "3"})
    with Held(folder, 2):
        job.send(signal.SIGUSR1)
        until(lambda: "asked the run to stop" in job.err, 30, "launch.sh to hear of it", job)
    job.wait()
    expect("after the last restart allowed: exit code 75, nothing submitted",
           job.code == 75 and not pbs.submitted() and says_once(job, "restarted 3 times already"), job)


def killed_at_walltime(job):
    """What the mom writes into the job's output before it sends TERM."""
    os.lseek(job.files[1].fileno(), 0, os.SEEK_END)
    os.write(job.files[1].fileno(), b"=>> PBS: job killed: walltime 61 exceeded limit 59\n")
    job.send(signal.SIGTERM)


@case
def ended_for_good():
    """Catches: a job that comes back after qdel, at whatever time, or after the user's STOP; one that takes the walltime's
    own TERM for qdel's."""
    def asked(what, *requests, walltime="00:00:59"):
        folder = scratch("run")
        job = pbs.start("jobs/pbs/train.pbs", {**train_variables(folder, 1000000), "MESHARD_STOP_BEFORE_S": "0"},
                        walltime=walltime)
        with Held(folder, 2):
            for request in requests:
                request(job, folder)
                until(lambda: request is stop or "asked the run to stop" in job.err, 30, "launch.sh to hear of it", job)
                time.sleep(0.3)   # bash runs one trap for two signals that wait together
        job.wait()
        expect(f"{what}: a checkpoint, no rank is left", steps_saved(folder) and not ranks_of(folder), job)
        return job

    def stop(_, folder):
        (folder / "STOP").touch()

    def qdel(job, _):
        job.send(signal.SIGTERM)

    def qsig(job, _):
        job.send(signal.SIGUSR1)

    for what, requests, wish, limit in (
            ("TERM in the last minute", [qdel], "TERM", "00:00:59"),
            ("TERM, then USR1", [qdel, qsig], "TERM", "01:00:00"),
            ("TERM, twice at the walltime", [lambda job, _: killed_at_walltime(job), qdel], "TERM", "00:00:59"),
            ("STOP and USR1", [stop, qsig], "the file STOP", "01:00:00")):
        job = asked(what, *requests, walltime=limit)
        expect(f"{what}: exit code 75, said, no successor", job.code == 75 and not pbs.submitted() and
               says_once(job, f"stopped by {wish}: not requeued"), job)
    job = asked("TERM at the walltime", lambda job, _: killed_at_walltime(job))
    expect("TERM at the walltime: exit code 0, a successor", job.code == 0 and len(pbs.submitted()) == 1, job)

    folder = scratch("run")
    job = pbs.start("jobs/pbs/train.pbs", train_variables(folder, 1000000))
    (pbs.tools / "hold").touch()
    with Held(folder, 2):
        job.send(signal.SIGUSR1)
        until(lambda: "asked the run to stop" in job.err, 30, "launch.sh to hear of it", job)
    until(pbs.submitted, 30, "the successor's qsub", job)
    for pid in [job.process.pid, *pbs.qsubs()]:   # as the mom does it
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.2)
    (pbs.tools / "hold").unlink()
    job.wait()
    expect("TERM while the successor is submitted: it is deleted, exit code 75",
           job.code == 75 and (pbs.tools / "deleted").read_text() == "2.pbs\n", job)


@case
def array():
    """Catches: an index off by one; a successor of a subjob that is another point, or none."""
    rates = {f"optimizer.lr={rate}": ("lr: 1.0e-3", f"lr: {rate}") for rate in ("1.0e-4", "2.0e-3", "3.0e-3")}
    sweep = write_sweep(scratch("sweep"), rates)
    variables = {"SWEEP": str(sweep), "OPTIONS": " ".join(sets({**VALUES, "train.steps": 20}))}
    one = {"select": "1:ncpus=2:mpiprocs=2:ompthreads=1"}
    job = pbs.start("jobs/pbs/array.pbs", variables, extra={"PBS_ARRAY_INDEX": "2", "PBS_JOBID": "1[2].pbs"},
                    facts={"Output_Path": "host:/clone/tiny.o1.2", "Mail_Points": "aj"}, **one)
    with Held(sweep / "optimizer.lr=3.0e-3", 2):
        job.send(signal.SIGUSR1)
        until(lambda: "asked the run to stop" in job.err, 30, "launch.sh to hear of it", job)
    job.wait()
    expect("stopped, with a successor", job.code == 0 and len(pbs.submitted()) == 1, job)
    (words, carried), = pbs.submitted()
    expect("which is of this point alone", carried["INDEX"] == "2" and "-J" not in words, words)
    expect("without what is the array's", "-o" not in words and words[words.index("-m") + 1] == "a", words)
    expect("noted, so that a sweep leaves it alone", (sweep / "jobs.txt").read_text() == "pbs 2.pbs 2\n", job)
    job = pbs.start(words[-1], carried, **one).wait()
    expect("it ends", job.code == 0, job)
    ran = [steps_logged(sweep / name) for name in rates]
    expect("only point 2 ran, with its value", ran == [0, 0, 20] and "lr: 0.003" in
           (sweep / "optimizer.lr=3.0e-3/config.yaml").read_text(), job)
    job = pbs.start("jobs/pbs/array.pbs", variables, extra={"PBS_ARRAY_INDEX": "3"}, **one).wait()
    expect("point 3 of 3: exit code 2", job.code == 2 and says_once(job, "its points are 0 to 2"), job)


def submit(*words, **env):
    (pbs.tools / "submitted").unlink(missing_ok=True)
    return Run(["jobs/submit.sh", "pbs", *words], cwd=home, env={**pbs.environment, "DEFAULT_QUEUE": "workq", **env}).wait(60)


@case
def submitted():
    """Catches: a setting of the environment, or a comma in an option, that does not reach the job; a time that PBS reads
    otherwise; points that a sweep submits again."""
    shape = ("--nodes", 2, "--ranks-per-node", 2, "--cores-per-rank", 8, "--time", "10:00:00", TINY)
    settings = {"MESHARD_MPI_OPTIONS": "--mca btl ^tcp,openib  --bind-to none", "MESHARD_STOP_BEFORE_S": "77", "PREFLIGHT": "1"}
    run = submit(*shape, "--set", "data.files=[a,b]", MESHARD_PARTITION="long", MESHARD_ACCOUNT="physics",
                 MESHARD_GPUS_PER_NODE="2", MESHARD_RESTARTS="4", **settings)
    expect("exit code 0", run.code == 0, run)
    (words, carried), = pbs.submitted()
    expect("the site's settings and the shape of the job", words[:6] == [
        "-l", "select=2:ncpus=16:mpiprocs=2:ompthreads=8:ngpus=2,walltime=10:00:00", "-A", "physics", "-q", "long"], words)
    expect("a comma in an option arrives", carried["OPTIONS"] == "--set data.files=[a,b]", carried)
    expect("so do the settings", {**settings, "MESHARD_PARTITION": "long"}.items() <= carried.items(), carried)
    expect("but not the restarts of a job that submits another", "MESHARD_RESTARTS" not in carried, carried)
    for given, told in (("5:30", "00:05:30"), ("1-2", "26:00:00"), ("2-03:04", "51:04:00"), ("1-00:00:09", "24:00:09")):
        run = submit("--nodes", 1, "--time", given, TINY, MESHARD_STOP_BEFORE_S="10")
        expect(f"--time {given} is walltime={told}", run.code == 0 and f",walltime={told} " in run.out, run)

    sweep = write_sweep(scratch("sweep"), {f"point{n}": ("lr: 1.0e-3", f"lr: {n + 1}.0e-3") for n in range(4)})
    for options, told, noted in (((), ["-J", "0-3"], "0,1,2,3"), (("--array", "1-3:2"), ["-J", "1-3:2"], "1,3"),
                                 (("--array", "2-2"), [], "2")):
        (sweep / "jobs.txt").unlink(missing_ok=True)
        run = submit("--ranks-per-node", 1, *options, sweep)
        expect(f"a sweep {options}: exit code 0", run.code == 0, run)
        (words, carried), = pbs.submitted()
        expect(f"a sweep {options}: -J, or one index", [word for option, word in zip(words, words[1:]) if option == "-J"] ==
               told[1:] and carried.get("INDEX") == (None if told else "2"), words, carried)
        expect(f"a sweep {options}: noted", (sweep / "jobs.txt").read_text() == f"pbs 2.pbs {noted}\n", run)


@case
def refused():
    """Catches: a job that starts with too few cores, in the wrong system, with a config that does not fit, or for points
    that there are not; chunks of several kinds that are refused."""
    folder = scratch("run")

    def refused_job(what, pattern, variables=None, **named):
        job = pbs.start("jobs/pbs/train.pbs", variables or train_variables(folder, 2), **named).wait()
        expect(f"{what}: exit code 2, says once /{pattern}/", job.code == 2 and says_once(job, pattern), job)

    refused_job("no ompthreads", "more than ncpus=4; add ompthreads=2", select="1:ncpus=4:mpiprocs=2", threads=4)
    refused_job("no ompthreads in the second chunk", "2 ranks x 2 cores are more than ncpus=2; add ompthreads=1",
                select="1:ncpus=4:mpiprocs=2:ompthreads=2+1:ncpus=2:mpiprocs=2", threads=2)
    refused_job("srun", "srun, which PBS does not have", extra={"MESHARD_LAUNCHER": "srun"})
    refused_job("another number of ranks", "does not fit 2 ranks", train_variables(folder, 2, {"parallel.dp_outer": 3}))
    for select in ("1:ompthreads=1:ncpus=2:mpiprocs=2+3:ompthreads=1:ncpus=2", "1:mpiprocs=2:ncpus=2+3:ncpus=1"):
        refused_job(f"select={select} is no reason to refuse", "does not fit 2 ranks",
                    train_variables(folder, 2, {"parallel.dp_outer": 3}), select=select)
    expect("nothing was begun", not folder.exists())

    shape = ("--nodes", 2, "--ranks-per-node", 2, "--cores-per-rank", 8, "--time", "10:00:00", TINY)
    sweep = write_sweep(scratch("sweep"), {f"point{n}": ("lr: 1.0e-3", f"lr: {n + 1}.0e-3") for n in range(2)})
    for what, pattern, words, env in (
            ("unknown queue", "no queue 'fast': set MESHARD_PARTITION in jobs/site.env to one of: workq long", shape,
             {"MESHARD_PARTITION": "fast"}),
            ("no queue", "no default queue: set MESHARD_PARTITION in jobs/site.env to one of: workq long", shape,
             {"DEFAULT_QUEUE": ""}),
            ("a blank in an option", "cannot travel in qsub -v", (*shape, "--set", "run.name=a b"), {}),
            ("a number as time", "--time 90: minutes to Slurm, seconds to PBS; give HH:MM:SS", ("--time", 90, TINY), {}),
            ("a time that is none", "--time needs HH:MM:SS, .*, not '1:99:00'", ("--time", "1:99:00", TINY), {}),
            ("points that there are not", "has no point 99: its points are 0 to 1", ("--array", "0-99", sweep), {}),
            ("one of two that there is not", "has no point 2: its points are 0 to 1", ("--array", "0,2", sweep), {}),
            ("an empty range", "--array 1-0: 1-0 names no index", ("--array", "1-0", sweep), {}),
            ("no list", "--array needs indices such as 0-11 or 0,3-5, not '0-'", ("--array", "0-", sweep), {}),
            ("several ranges", "--array 0,1: PBS takes one index or one range", ("--array", "0,1", sweep), {})):
        run = submit(*words, **env)
        expect(f"submit.sh: {what}: exit code 2, says once /{pattern}/", run.code == 2 and says_once(run, pattern), run)
        expect(f"submit.sh: {what}: nothing was submitted", not pbs.submitted())


@case
def overhead():
    """Catches: scripts that keep an allocation waiting."""
    (pbs.tools / "mpirun").write_text(f'#!/bin/sh\n[ "$1" = --version ] || date +%s.%N >{pbs.tools}/started\n')
    (pbs.tools / "mpirun").chmod(0o755)
    walls, cpus = [], []
    for _ in range(3):
        begin = time.time()
        job = pbs.start("jobs/pbs/train.pbs", train_variables(scratch("run"), 2)).wait()
        walls.append(float((pbs.tools / "started").read_text()) - begin)
        cpus.append(job.rusage.ru_utime + job.rusage.ru_stime)
    (pbs.tools / "mpirun").unlink()
    print(f"from the start of a job to mpirun: {min(walls):.2f} to {max(walls):.2f} s; {min(cpus):.2f} s of a CPU")
    busy = os.getloadavg()[0] > os.cpu_count()   # others' work is not the scripts' time
    expect("below 2 s", min(cpus if busy else walls) < 2.0, walls, cpus)


@case
def only_what_the_manual_has():
    """Catches: a directive, an option, an attribute or a variable that OpenPBS does not have."""
    scripts = "".join((SOURCE / "jobs" / name).read_text() for name in ("pbs/train.pbs", "pbs/array.pbs", "pbs/successor.sh"))
    shared = "".join((SOURCE / "jobs" / name).read_text() for name in ("batch.sh", "submit.sh", "mpirun.sh"))
    code = "\n".join(line for line in (scripts + shared).splitlines() if not re.match(r"\s*#(?!PBS)", line))
    used = set(re.findall(r"(?m)^#PBS (-\w)", code))
    calls = [line for line in code.splitlines()
             if re.search(r"qsub|options[+=]|command[+=]|_List|_Path", line) and not re.search("sbatch|job_fact|-[gp]t ", line)]
    used |= {option for line in calls for option in re.findall(r"(?<=[\s(])-[A-Zejklmopqrv](?=\s)", line)}
    used |= set(re.findall(r"\bPBS_[A-Z_]+|\bOMP_NUM_THREADS\b", code))
    used |= set(re.findall(r"\b(select|place|ncpus|mpiprocs|ompthreads|walltime|ngpus)=?", code))
    used |= set(re.findall(r"\b(?:[A-Z][a-z]+(?:_[A-Z][a-z]+)+|Priority|Rerunable|project|schedselect|run_count|group_list|"
                           r"exec_host|default_queue|resources_available)\b", code))
    used |= {" ".join([name, *options.split()]) for name, options in re.findall(r"\b(qstat|pbsnodes)((?: -\w)+)", code)}
    expect("everything that the scripts use is in the table", used <= set(MANUAL), sorted(used - set(MANUAL)))
    expect("everything in the table is used", used >= set(MANUAL), sorted(set(MANUAL) - used))
    unknown = [line for line in code.splitlines() if line.startswith("#PBS") and not re.fullmatch(
        r"#PBS -(N \w+|j oe|r y|l walltime=[\d:]+|l select=\d+:ncpus=\d+:mpiprocs=\d+:ompthreads=\d+)", line)]
    expect("every directive has the form of the manual", not unknown, unknown)


with pbs_of_a_clone() as pbs:
    home = pbs.home
    main()
