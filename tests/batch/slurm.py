#!/usr/bin/env python3
"""The job scripts under a real Slurm: munged, slurmctld and two slurmd on this machine."""
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from cluster import Cluster, missing
from batch_jobs import TINY, VALUES, Held, as_root, clone, ranks_of, write_sweep
from slurm_jobs import UNBOUND, Slurm, same_as_uninterrupted
from harness import (SKIPPED, Metrics, Run, case, expect, is_running, main, processes, says_once, scratch, sets, steps_logged,
                     until)
from saved import steps_saved

ASKED = "launch.sh: USR1: asked the run to stop"


@case
def preempted_and_requeued_twice():
    """Catches: a wall-time signal or a preemption that kills, saves nothing, or is not followed by another start; a
    step lost, done twice or done differently after it."""
    steps = 30
    values = {"checkpoint.interval": steps}
    folder, reference = scratch("run"), scratch("uninterrupted")
    options = ["--time=60", "--signal=B:USR1@270"]
    job = slurm.sbatch(folder, steps, values, options, ["--overwrite"])   # which is of the first start only
    with Held(folder, 3, job.until):
        # Slurm looks every 30 s, and signals up to 30 s early.
        cluster.call("scontrol", "update", f"JobId={job.number}", "TimeLimit=5")
        whole = slurm.sbatch(reference, steps, values)
        job.says(ASKED, 60)
    job.wait("PENDING")
    expect("time limit: it says that it is requeued, and how often that may be",
           re.search(r"requeueing job \d+, restart 1 of at most 20", job.log), job)
    cluster.call("scontrol", "update", f"JobId={job.number}", "TimeLimit=60")
    first = steps_saved(folder)
    expect("time limit: a checkpoint was saved, on request", len(first) == 1 and first[0] < steps, first, job)
    whole.expect_ended("uninterrupted", "COMPLETED")
    with Held(folder, first[0] + 2, job.until):
        urgent = slurm.job(cluster.call("sbatch", "--parsable", "-p", "urgent", "-N2", "--exclusive", "-o/dev/null",
                                  "--wrap", "true", cwd=home).strip())
        job.says(ASKED, 60, times=2)
    urgent.ended()
    expect("preemption: the urgent job ran", urgent.state == "COMPLETED", urgent)
    job.expect_ended("restarted twice", "COMPLETED")
    expect("restarted twice: Slurm says so", job.info("Restarts") == "2", job)
    expect("restarted twice: three starts, two of them resumed", [job.log.count(text) for text in (
        "restart 0:", "restart 1:", "restart 2:", "resuming after step")] == [1, 1, 1, 2], job)
    same_as_uninterrupted("restarted twice", folder, reference, steps)


@case
def over_two_nodes():
    """Catches: a job that runs on one node, unbound or with other ranks than the allocation's; site settings that are
    not used; a job that does not say what runs where."""
    site = home / "jobs/site.env"
    original = site.read_text()
    site.write_text('MESHARD_PARTITION=main\nMESHARD_STOP_BEFORE_S=60\nPREFLIGHT=1\n'
                    'MESHARD_SUBMIT_OPTIONS=--exclusive\n' + original)
    folder = scratch("run")
    command = ["jobs/submit.sh", "slurm", "--nodes", 2, "--ranks-per-node", 2, "--cores-per-rank", 1, "--time",
               "0:05:00", TINY, "--run-dir", folder, *sets({**VALUES, "train.steps": 2})]
    run = Run(command, cwd=home).wait(60)
    expect("submit.sh: exit code 0", run.code == 0, run)
    job = slurm.job(re.search(r"Submitted batch job (\d+)", run.out)[1])
    job.expect_ended("submit.sh", "COMPLETED")
    site.write_text(original)
    expect("the partition of site.env", job.info("Partition") == "main", job)
    for what, pattern, count in (
            ("ranks, cores, nodes", r"restart 0: 4 ranks x 1 core on 2 nodes: node\[1-2\]", 1),
            ("the launcher's version and options", r"mpirun \(Open MPI\) [\d.]+; launcher: mpirun -n 4 ", 1),
            ("the node", r"node1: .* CPUs, .* GB, \d+ GPUs", 1),
            ("Meshard's and LibTorch's versions", r"\nmeshard +\d.*\nLibTorch +\d", 1),
            ("why ranks are bound", "binding: each rank to cores of its own, as the job has its nodes for itself", 1),
            ("the binding of each rank", r"MCW rank \d bound to ", 8),   # preflight and training
            ("the map of ranks", r"\n  rank 0-3 ", 1), ("the run folder", rf"run folder {folder};", 1),
            ("the end", r"meshard: done: results lie in", 1)):
        expect(f"the log has {what}", len(re.findall(pattern, job.log)) == count, job)
    expect("preflight ran first", 0 <= job.log.find("\npreflight  ") < job.log.find("\nstep 1/2"), job)


@case
def srun_with_pmix():
    """Catches: srun that starts worlds of one rank, loses the signal or the exit code, or hangs on a dead rank."""
    folder = scratch("run")
    env = {"MESHARD_LAUNCHER": "srun"}
    job = slurm.sbatch(folder, 20, env=env)
    with Held(folder, 3, job.until):
        cluster.call("scancel", "--batch", "--signal=USR1", job.number)
        job.says(ASKED, 30)
    job.expect_ended("srun, stopped once", "COMPLETED")
    expect("srun: requeued once, and resumed", job.info("Restarts") == "1" and "resuming after step" in job.log, job)
    expect("srun: one world of two ranks", job.log.count("2 ranks = dp_outer 1 x dp_shard 2") == 2, job)
    expect("srun: every step stands once", Metrics(folder).texts("step") == list(range(1, 21)), job)


@case
def wrong_pairing():
    """Catches: N runs of one rank each where one of N was meant; a message without the right command, or N of them."""
    folder = scratch("run")
    env = {"MESHARD_LAUNCHER": "srun", "MESHARD_SRUN_OPTIONS": "--mpi=none"}
    job = slurm.sbatch(folder, 2, env=env)
    job.expect_ended("srun without PMIx", "FAILED", 2)
    for text in ("mpirun -n 2 meshard", "srun --mpi=pmix -n 2 meshard", "srun started 2 processes without PMIx"):
        expect(f"srun without PMIx: says once /{text}/", job.log.count(text) == 1, job)
    expect("srun without PMIx: nothing was begun", not folder.exists(), job)
    command = ["build/meshard", "train", TINY, "--run-dir", folder]
    for what, variables in (("another MPI's mpirun", {"PMI_RANK": "0", "PMI_SIZE": "2"}),
                            ("another Open MPI's mpirun", {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})):
        run = Run(command, cwd=home, env=variables).wait(60)
        expect(f"{what}: exit code 2, with the right command", run.code == 2 and says_once(run, "mpirun -n 2"), run)


@case
def killed():
    """Catches: anything of a run that is left when its script or its mpirun is killed with -9; ranks of a job that shares
    its nodes, bound to cores that another job's are bound to."""
    for what in ("script", "mpirun"):
        folder = scratch("run")
        job = slurm.sbatch(folder, 1000000, env={"MESHARD_MPI_OPTIONS": ""})
        with Held(folder, 2, job.until):
            pids = [pid for pid, command in processes() if str(folder) in " ".join(command) and
                    (command[0] == "mpirun" if what == "mpirun" else "slurm_script" in command[1])]
            expect(f"{what}: there is one", len(pids) == 1, pids, job)
            os.kill(pids[0], signal.SIGKILL)
            until(lambda: not is_running("", folder), 20, f"an end of all that is of the run: {what}")
        job.ended()
        expect(f"{what}: the job has failed", job.state == "FAILED" and "binding: none of ours" in job.log, job)


@case
def array():
    """Catches: an index off by one; a point's run outside its folder; a point that is not there; one that
    is requeued and takes the others along."""
    rates = {f"optimizer.lr={rate}": ("lr: 1.0e-3", f"lr: {rate}") for rate in ("1.0e-4", "2.0e-3", "3.0e-3")}
    sweep = write_sweep(scratch("sweep"), rates)
    words = ("sbatch", "--parsable", "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", "--time=5",
             "--array=0,2,3", "--signal=B:USR1@10", "jobs/slurm/array.sbatch", sweep,
             *sets({**VALUES, "train.steps": 2}))
    number = cluster.call(*words, cwd=home, env=UNBOUND).strip()
    tasks = {index: slurm.job(f"{number}_{index}") for index in (0, 2, 3)}
    for index in (0, 2):
        tasks[index].expect_ended(f"point {index}", "COMPLETED")
    tasks[3].expect_ended("point 3 of 3", "FAILED", 2)
    expect("point 3 of 3: said, with the range", "has no point 3: its points are 0 to 2" in tasks[3].log, tasks[3])
    ran = {name: steps_logged(sweep / name) for name in rates}
    expect("points 0 and 2 ran, each in its folder", list(ran.values()) == [2, 0, 2], ran)
    expect("with their own values", "lr: 0.003" in (sweep / "optimizer.lr=3.0e-3/config.yaml").read_text(), sweep)

    pair = write_sweep(scratch("sweep"), {name: ("steps: 20", "steps: 400") for name in ("goes on", "stops")})
    run = Run(["jobs/submit.sh", "slurm", "--nodes", 1, "--ranks-per-node", 2, "--cores-per-rank", 1, "--time", "60",
               "--array", "0-1:1,1%2", pair, *sets(VALUES)], cwd=home, env=UNBOUND).wait(60)
    expect("submit.sh of a sweep", run.code == 0 and " jobs/slurm/array.sbatch " in run.out, run)
    number = re.search(r"Submitted batch job (\d+)", run.out)[1]
    expect("submit.sh notes the array, so that a sweep leaves it alone",
           (pair / "jobs.txt").read_text() == f"slurm {number} 0,1\n", run)
    other, stopped = (slurm.job(f"{number}_{index}") for index in (0, 1))
    with Held(pair / "goes on", 3, other.until):
        with Held(pair / "stops", 3, stopped.until):
            cluster.call("scancel", "--batch", "--signal=USR1", stopped.number)
            stopped.says(ASKED, 30)
        stopped.expect_ended("a point that stops", "COMPLETED")
    expect("a point that stops is requeued", stopped.info("Restarts") == "1", stopped)
    other.expect_ended("the other point", "COMPLETED")
    expect("the other point is left alone", other.info("Restarts") == "0", other)


@case
def handed_on():
    """Catches: a setting of the environment that does not reach the job where sbatch is told to hand nothing on, or loses
    its commas and blanks on the way; a time limit that Slurm takes and submit.sh does not, or takes for another."""
    site = home / "jobs/site.env"
    original = site.read_text()
    shape = ("--nodes", 1, "--ranks-per-node", 1, "--cores-per-rank", 1)
    settings = {"MESHARD_MPI_OPTIONS": "--bind-to none  --mca btl ^tcp,openib,vader", "MESHARD_MAX_REQUEUES": "7",
                "MESHARD_MODULES": ""}
    # The job says what it has, and ends.
    site.write_text(original + "\nif [ -n \"${SLURM_JOB_ID-}\" ]; then env | grep -E '^(MESHARD_|GIVEN)'; exit 7; fi\n")
    for options, env, also in (("", {"SBATCH_EXPORT": "NONE"}, ""), ("--export=NONE", {}, ""), ("--export GIVEN=1", {}, "GIVEN=1"),
                               ("", {}, "")):
        run = Run(["jobs/submit.sh", "slurm", *shape, "--time", "6", TINY], cwd=home,
                  env={**settings, "MESHARD_SUBMIT_OPTIONS": options, **env}).wait(60)
        job = slurm.job(re.search(r"Submitted batch job (\d+)", run.out)[1])
        job.expect_ended(f"{options or env}", "FAILED", 7)
        told = {**settings, "MESHARD_SUBMIT_OPTIONS": options}
        expect(f"{options or env}: the settings arrive", all(f"{name}={value}\n" in job.log for name, value in told.items()) and
               also in job.log, job)
    site.write_text(original)
    for limited, limit in (("90", "01:30:00"), ("7:30", "00:08:00"), ("0-1", "01:00:00"), ("0-0:50", "00:50:00"),
                        ("0-00:40:00", "00:40:00")):
        run = Run(["jobs/submit.sh", "slurm", *shape, "--time", limited, TINY], cwd=home,
                  env={"MESHARD_SUBMIT_OPTIONS": "--hold --parsable"}).wait(60)
        expect(f"--time {limited}: submitted", run.code == 0, run)
        job = slurm.job(run.out.splitlines()[-2].split(";")[0])
        expect(f"--time {limited}: Slurm reads {limit}", job.info("TimeLimit") == limit, job)
        cluster.call("scancel", job.number)


@case
def stopped_while_starting():
    """Catches: a request that breaks mpirun while it starts its daemons, and the job with it."""
    for delay in (0, 0.1, 0.3):
        folder = scratch("run")
        job = slurm.sbatch(folder, 10, options=["--time=60"])   # its time is not nearly over
        job.says("the scripts took", 60)
        time.sleep(delay)
        cluster.call("scancel", "--batch", "--signal=USR1", job.number)
        job.expect_ended(f"USR1 {delay} s after mpirun began to start", "COMPLETED")
        # mpirun forgets one that comes too early, and the run may have ended before it is repeated.
        print(f"restarts: {job.info('Restarts')}")
        expect("each step stands once", Metrics(folder).texts("step") == list(range(1, 11)), job)


@case
def cancelled():
    """Catches: a cancelled job that comes back; ranks that outlive it; a job that cannot be ended with a checkpoint."""
    folder = scratch("run")
    endless = {"checkpoint.interval": 2, "checkpoint.async": "false"}
    job = slurm.sbatch(folder, 100000, endless)
    until(lambda: steps_saved(folder), 60, "a checkpoint")
    cluster.call("scancel", job.number)
    job.ended()
    expect("scancel: CANCELLED, not started again", (job.state, job.info("Restarts")) == ("CANCELLED", "0"), job)
    until(lambda: not ranks_of(folder), 15, "the end of its ranks")
    job = slurm.sbatch(folder, 100000, endless)
    job.says("resuming after step", 60)
    with Held(folder, steps_logged(folder) + 1, job.until):
        cluster.call("scancel", "--batch", "--signal=TERM", job.number)
        job.says(ASKED, 30)
    job.expect_ended("scancel --batch --signal=TERM", "FAILED", 75)
    expect("it saved, and says that it was not requeued", job.info("Restarts") == "0" and "by TERM: not requeued" in
           job.log and steps_saved(folder)[-1] == Metrics(folder).steps[-1]["step"], job)


@case
def pbs_scripts():
    """Catches: what Slurm's own reading of qsub and #PBS does not accept: options, directives, a successor's."""
    folder, config = scratch("run"), home / "four.yaml"
    config.write_text((home / TINY).read_text().replace("steps: 20", "steps: 4"))
    site = home / "jobs/site.env"
    original = site.read_text()
    # Slurm's qsub exports nothing but -v.
    exports = " ".join(f"{name}={value}" for name, value in os.environ.items() if name.startswith("OMPI_"))
    site.write_text(f"export {exports}\nunset SLURM_EXPORT_ENV\nMESHARD_MPI_OPTIONS='--bind-to none'\n" + original)

    def qsub(*more):
        variables = [f"CONFIG={config}", f"OPTIONS=--run-dir={folder}", "MESHARD_MAX_REQUEUES=1", *more]
        return slurm.job(cluster.call("qsub", "-o", "meshard-%j.out", "-j", "oe", "-l",
                                "select=2:ncpus=1:mpiprocs=1:ompthreads=1,walltime=00:05:00", "-v", ",".join(variables),
                                "jobs/pbs/train.pbs", cwd=home).strip())

    job = qsub()
    job.expect_ended("qsub", "COMPLETED")
    expect("qsub: two ranks on two nodes, a limit from the walltime",
           "2 ranks x 1 core on 2 nodes: node1 node2" in job.log and "walltime 300 s" in job.log, job)
    config.write_text(config.read_text().replace("steps: 4", "steps: 20"))
    job = qsub()
    with Held(folder, 6, job.until):
        cluster.call("scancel", "--batch", "--signal=USR1", job.number)
        job.says(ASKED, 30)
    job.expect_ended("qsub of a run that stops", "COMPLETED")
    successor = slurm.job(re.search(r"job (\d+) goes on", job.log)[1])
    successor.expect_ended("its successor", "COMPLETED")
    expect("its successor: the same nodes and time, and no further one", (
        successor.info("NumNodes"), successor.info("NumTasks"), successor.info("TimeLimit")) == ("2", "2", "00:05:00") and
        not cluster.call("squeue", "-h").strip(), successor)
    expect("its successor: went on", "resuming after step" in (folder / "log.txt").read_text() and
           Metrics(folder).texts("step") == list(range(1, 21)), successor)
    site.write_text(original)


@case
def requeued_within_bounds():
    """Catches: a run that can make no progress and is requeued for ever."""
    job = slurm.sbatch(scratch("run"), 100, {"train.max_minutes": "0.0000001"})
    job.expect_ended("no time for a step", "FAILED", 70)
    expect("not restarted, and said", job.info("Restarts") == "0" and "give it more time" in job.log, job)


@case
def node_down():
    """Catches: a job that is lost with a node, or that hangs; a run folder that the next start cannot use."""
    folder = scratch("run")
    job = slurm.sbatch(folder, 40, {"checkpoint.interval": 2, "checkpoint.async": "false"})
    with Held(folder, 3, job.until):
        cluster.call("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=test")
        job.wait("PENDING")
    until(lambda: not ranks_of(folder), 30, "the end of its ranks")
    saved = steps_saved(folder)
    cluster.call("scontrol", "update", "NodeName=node2", "State=RESUME")
    job.expect_ended("node down", "COMPLETED")
    expect("node down: one restart, from the newest checkpoint",
           job.info("Restarts") == "1" and f"resuming after step {saved[-1]} " in job.log, job)
    expect("node down: every step stands once", Metrics(folder).texts("step") == list(range(1, 41)), job)


@case
def refused_before_submission():
    """Catches: a mistake that costs a wait in the queue; a refusal that does not say how to mend it."""
    site = home / "jobs/site.env"
    original = site.read_text()
    shape = ("--nodes", 2, "--ranks-per-node", 1, "--cores-per-rank", 1)
    before = cluster.call("squeue", "-h", "-t", "all", "-o", "%i")

    def refused(what, *patterns, env=None, options=(*shape, TINY), site_text=original):
        site.write_text(site_text)
        run = Run(["jobs/submit.sh", "slurm", *options], cwd=home, env=env).wait(60)
        site.write_text(original)
        expect(f"{what}: exit code 2", run.code == 2, run)
        for pattern in patterns:
            expect(f"{what}: says once /{pattern}/", says_once(run, pattern), run)

    refused("unknown partition", "no partition 'gpu'", "MESHARD_PARTITION in jobs/site.env to one of: main urgent",
            env={"MESHARD_PARTITION": "gpu"})
    cluster.call("scontrol", "update", "PartitionName=main", "Default=NO")
    refused("no partition", "no default partition: set MESHARD_PARTITION in jobs/site.env to one of: main urgent")
    cluster.call("scontrol", "update", "PartitionName=main", "Default=YES")
    refused("missing setting", "jobs/site.env does not set MESHARD_LAUNCHER",
            site_text=re.sub(r'(?m)^: "\$\{MESHARD_LAUNCHER.*\n', "", original))
    refused("wrong settings", "MESHARD_LAUNCHER is 'ssh', neither mpirun nor srun",
            "MESHARD_STOP_BEFORE_S is '5m', not a whole number",
            env={"MESHARD_LAUNCHER": "ssh", "MESHARD_STOP_BEFORE_S": "5m"})
    refused("config of other ranks", "parallel.dp_outer: 3 does not divide the 2 ranks", "does not fit 2 ranks",
            options=(*shape, TINY, "--set", "parallel.dp_outer=3"))
    refused("no such config", "there is no config no.yaml in ", options=(*shape, "no.yaml"))
    refused("fewer GPUs than ranks", "2 ranks a node, but",
            env={"MESHARD_GPUS_PER_NODE": "1"}, options=("--nodes", 1, "--ranks-per-node", 2, TINY))
    refused("a time that is none", "--time needs HH:MM:SS, .*, not '1-'", options=("--time", "1-", TINY))
    refused("a time that the margin eats up", "no longer than MESHARD_STOP_BEFORE_S",
            options=("--time", "0:05:00", TINY))
    (home / "build/meshard").rename(home / "build/hidden")
    refused("nothing built", "no build/meshard in .*: run jobs/setup.sh there first")
    (home / "build/hidden").rename(home / "build/meshard")
    after = cluster.call("squeue", "-h", "-t", "all", "-o", "%i")
    expect("nothing was submitted", before == after, before, after)
    job = slurm.sbatch(scratch("run"), 2, {"parallel.dp_outer": 3})
    job.expect_ended("sbatch of a config of other ranks", "FAILED", 2)
    expect("refused before mpirun, with the reason", "3 does not divide the 2 ranks" in job.log
           and "launcher:" not in job.log, job)


@case
def overhead():
    """Catches: scripts that keep an allocation waiting."""
    seconds = slurm.overheads
    print(f"from the start of a job to mpirun: {min(seconds):.2f} to {max(seconds):.2f} s over {len(seconds)} jobs")
    expect("the fastest below 2 s", min(seconds) < 2.0, seconds)


as_root()
# Open MPI's shared memory is named after host, job and local rank, which are the same on both nodes here.
os.environ["OMPI_MCA_btl"] = "self,tcp"
if reason := missing():
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)
with tempfile.TemporaryDirectory(prefix="meshard-slurm-") as place, Cluster(Path(place) / "slurm") as cluster:
    home = clone(Path(place) / "clone")
    slurm = Slurm(cluster, home)
    main()
