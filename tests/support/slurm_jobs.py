"""Jobs of the cluster as the cases see them."""
import re

from batch_jobs import TINY, VALUES
from harness import Metrics, expect, meshard, read_bytes, sets, until
from saved import checkpoint, data_of

UNBOUND = {"MESHARD_MPI_OPTIONS": "--bind-to none"}   # two virtual nodes have the same cores


class Job:
    def __init__(self, slurm, number):
        self.slurm, self.number = slurm, number

    def info(self, key):
        text = self.slurm.call("scontrol", "show", "job", "-o", self.number)
        return re.search(rf"\b{key}=(\S*)", text)[1]

    @property
    def state(self):
        return self.info("JobState")

    @property
    def log(self):
        return read_bytes(self.slurm.home / f"meshard-{self.number}.out").decode(errors="replace")

    def text(self):
        lines = [line for line in self.log.splitlines() if not line.startswith(" ")]
        return f"{self.slurm.call('scontrol', 'show', 'job', self.number)}\n" + "\n".join(lines[-40:])

    def until(self, condition, limit, what):
        try:
            until(condition, limit, what)
        except AssertionError as error:
            raise AssertionError(f"{error}{self.text()}") from None

    def says(self, text, limit, times=1):
        """Waits until the job's log has the text so many times."""
        self.until(lambda: self.log.count(text) >= times, limit, f"/{text}/ in the log")

    def wait(self, *states, limit=240):
        self.until(lambda: self.state in states, limit, f"{' or '.join(states)}")
        return self

    def ended(self, limit=240):
        self.wait("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", limit=limit)
        self.slurm.overheads.extend(float(text) for text in re.findall(r"the scripts took ([\d.]+) s", self.log))
        return self

    def expect_ended(self, what, state, code=0):
        self.ended()
        expect(f"{what}: {state}, exit code {code}", (self.state, self.info("ExitCode")) == (state, f"{code}:0"), self)


class Slurm:
    """Submits from the clone `home`."""

    def __init__(self, cluster, home):
        self.call, self.home = cluster.call, home
        self.overheads = []   # seconds from the start of each job's script to mpirun

    def job(self, number):
        return Job(self, number)

    def sbatch(self, folder, steps, values=None, options=(), train=(), env=None):
        """Submits tiny.yaml on both nodes."""
        words = ["sbatch", "--parsable", "--nodes", 2, "--ntasks-per-node", 1, "--cpus-per-task", 1,
                 "--time", 5, "--signal=B:USR1@10", *options, "jobs/slurm/train.sbatch", TINY, "--run-dir", folder,
                 *sets({**VALUES, "train.steps": steps, **(values or {})}), *train]
        return self.job(self.call(*words, cwd=self.home, env={**UNBOUND, **(env or {})}).strip())


def same_as_uninterrupted(what, folder, reference, steps):
    run = meshard("compare", folder, reference, "--exact", "--metric", "loss", "--metric", "grad_norm")
    expect(f"{what}: losses and gradient norms are those of the uninterrupted run, bitwise", run.code == 0, run)
    expect(f"{what}: every step stands once", Metrics(folder).texts("step") == list(range(1, steps + 1)), folder)
    ours, theirs = data_of(checkpoint(folder, steps)), data_of(checkpoint(reference, steps))
    expect(f"{what}: the last checkpoints have the same bytes", ours and ours == theirs, sorted(ours), sorted(theirs))
