"""What the scripts about batch systems share: a clone to submit from, and what the jobs leave there."""
import os
import re
import shutil
import signal

from harness import BINARY, SOURCE, processes, read_bytes, steps_logged, until

TINY = "configs/tests/tiny.yaml"
# A constant rate: the schedule does not depend on train.steps. Every step is logged.
VALUES = {"train.eval_interval": 0, "lr_schedule.type": "constant", "lr_schedule.min_lr": 0}


def clone(folder):
    """Makes a folder like a clone after jobs/setup.sh: the scripts (copies, to be edited), the configs, the binary."""
    shutil.copytree(SOURCE / "jobs", folder / "jobs")
    (folder / "build").mkdir()
    (folder / "build/meshard").symlink_to(BINARY)
    (folder / "configs").symlink_to(SOURCE / "configs")
    return folder


def as_root():
    """Settings that only a machine with few cores or a root user needs."""
    os.environ.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"})
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "PBS_", "MESHARD_", "OMP_")):
            del os.environ[name]


def ranks_of(folder):
    """Processes of the run in `folder`, by rank."""
    found = {}
    for pid, command in processes():
        if command[0] in ("build/meshard", str(BINARY)) and str(folder) in " ".join(command):
            variables = read_bytes(f"/proc/{pid}/environ").decode(errors="replace").split("\0")
            for text in variables:
                if match := re.fullmatch(r"(?:OMPI_COMM_WORLD_RANK|PMIX_RANK)=(\d+)", text):
                    found[int(match[1])] = pid
    return found


class Held:
    """The run in `folder` stands still within the block, at some step after `steps` are logged: long steps, so to say.
    A machine's speed then decides nothing."""

    def __init__(self, folder, steps, wait=until):
        self.folder, self.steps, self.wait = folder, steps, wait

    def __enter__(self):
        self.wait(lambda: steps_logged(self.folder) >= self.steps and 0 in ranks_of(self.folder), 120,
                  f"step {self.steps} of {self.folder}")
        self.pid = ranks_of(self.folder)[0]
        os.kill(self.pid, signal.SIGSTOP)
        return self

    def __exit__(self, *_):
        try:
            os.kill(self.pid, signal.SIGCONT)
        except ProcessLookupError:   # killed meanwhile, as a test may want it
            pass


def write_sweep(folder, points):
    """A sweep's folder as `meshard sweep` lays it out. points: name -> text added to the tiny config."""
    folder.mkdir(parents=True)
    (folder / "points.txt").write_text("".join(f"{name}\n" for name in points))
    base = (SOURCE / TINY).read_text()
    for name, (old, new) in points.items():
        assert old in base
        (folder / name).mkdir()
        (folder / name / "point.yaml").write_text(base.replace(old, new))
    return folder
