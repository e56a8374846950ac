"""What the end-to-end scripts share: they run the binary as a user does and look at what it leaves behind.

A script is called as `SCRIPT.py SOURCE_FOLDER BINARY [CASE...]`. It marks its cases with @case and ends in main(). A
case's docstring says what it catches. Exit code: 0 all held, 1 something failed (with command and output), 77 skipped.
"""
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

SOURCE = Path(sys.argv[1]).resolve() if len(sys.argv) > 2 else None
BINARY = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
SKIPPED = 77

# What runs here is no part of the batch job that these tests may be run in.
for _name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_ARRAY_TASK_ID", "PBS_JOBID", "PBS_ENVIRONMENT",
              "MESHARD_CHAIN"):
    os.environ.pop(_name, None)

_cases = []
_failures = []
_folder = None
_running = []


class Skip(Exception):
    """The machine lacks something; the message says what."""


def case(function):
    """Marks a test case."""
    _cases.append(function)
    return function


def expect(what, holds, *runs):
    """One check. A failure prints the runs (command, exit code, output) that it is about."""
    print(f"{'ok' if holds else 'FAILED'}: {what}", flush=True)
    if not holds:
        _failures.append(what)
        for run in runs:
            print(indent(run.text() if hasattr(run, "text") else str(run)), flush=True)
    return bool(holds)


def indent(text):
    return "\n".join("    " + line for line in text.splitlines())


def scratch(name):
    """A path of its own below the script's temporary folder; nothing is there yet."""
    folder = Path(tempfile.mkdtemp(dir=_folder))
    return folder / name


class Run:
    """A started command. `wait` gives it an end; the output is in `out` and `err`."""

    def __init__(self, command, cwd=None, env=None):
        self.command = [str(word) for word in command]
        self.files = [tempfile.TemporaryFile("w+", errors="replace") for _ in range(2)]
        self.code, self.rusage, self.begin = None, None, time.monotonic()
        self.process = subprocess.Popen(
            self.command, cwd=cwd or SOURCE, stdin=subprocess.DEVNULL, stdout=self.files[0], stderr=self.files[1],
            env={**os.environ, **(env or {})}, start_new_session=True, preexec_fn=default_signals)
        _running.append(self)

    def poll(self):
        """The exit code, or None while it runs. 128 + n if signal n ended it."""
        if self.code is None:
            pid, status, rusage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.code, self.rusage = code if code >= 0 else 128 - code, rusage
                self.process.returncode = self.code
                self.seconds = time.monotonic() - self.begin
        return self.code

    def wait(self, limit=150):
        """Waits for its end; a run that does not end within `limit` seconds is killed, and an error."""
        until(lambda: self.poll() is not None, limit, f"the end of the run within {limit} s", self)
        return self

    @property
    def out(self):
        return self._read(0)

    @property
    def err(self):
        return self._read(1)

    def _read(self, which):
        self.files[which].seek(0)
        return self.files[which].read()

    def text(self):
        code = "running" if self.poll() is None else self.code
        parts = [f"$ {shlex.join(self.command)}", f"exit code {code} after {time.monotonic() - self.begin:.1f} s"]
        for name, text in (("stdout", self.out), ("stderr", self.err)):
            lines = text.splitlines()
            parts += [f"--- {name} ({len(lines)} lines)"] + lines[-30:]
        return "\n".join(parts)

    def send(self, number):
        os.kill(self.process.pid, number)

    def rank_pid(self, rank, folder):
        """The process of a rank of the run in `folder`, found by its environment."""
        for pid, command in processes():
            if command[0] == str(BINARY) and str(folder) in command:
                environment = read_bytes(f"/proc/{pid}/environ").split(b"\0")
                if f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment:
                    return pid
        raise AssertionError(f"no process of rank {rank}\n{self.text()}")

    def kill(self):
        """Ends whatever is left of it: the command, and ranks that mpirun did not take along."""
        if self.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            deadline = time.monotonic() + 10
            while self.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)


def default_signals():
    # A script in the background of a shell without job control inherits an ignored INT.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def read_bytes(path):
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def processes():
    """(pid, command line) of every process."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            command = read_bytes(f"/proc/{entry}/cmdline").decode(errors="replace").split("\0")
            if command[0]:
                yield int(entry), command


def until(condition, limit, what, run=None):
    """Waits for a condition; raises after `limit` seconds, or when the run has ended and it still does not hold."""
    deadline = time.monotonic() + limit
    while not condition():
        ended = run is not None and run.poll() is not None and not condition()
        if ended or time.monotonic() > deadline:
            text = run.text() if run else ""
            if run:
                run.kill()
            raise AssertionError(f"waited for {what}\n{text}")
        time.sleep(0.05)


def is_running(program, folder):
    """Whether a process whose first word ends in `program` has the folder in its command line."""
    return any(command[0].endswith(program) and str(folder) in command for _, command in processes())


def sets(values):
    """--set options from {"train.steps": 3, ...}."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


TINY = "configs/tests/tiny.yaml"
VARIANTS = "configs/tests/variants.yaml"


def train_command(folder, config=TINY, values=None, options=()):
    return [BINARY, "train", config, "--run-dir", folder, *sets(values or {}), *options]


def mpirun(ranks, command):
    return [SOURCE / "tests/support/mpirun.sh", ranks, *command]


def start_training(folder, ranks=1, config=TINY, values=None, options=(), env=None, launch=False):
    """Starts a run; with launch=True through jobs/launch.sh, as job scripts do. One rank runs without mpirun."""
    command = train_command(folder, config, values, options)
    if ranks > 1 or launch:
        command = mpirun(ranks, command)
    if launch:
        command = [SOURCE / "jobs/launch.sh", *command]
    return Run(command, env=env)


def training(folder, *args, limit=150, **named):
    """A whole run."""
    return start_training(folder, *args, **named).wait(limit)


def meshard(*words, env=None, limit=60, cwd=None):
    """A whole command without mpirun."""
    return Run([BINARY, *words], env=env, cwd=cwd).wait(limit)


class Metrics:
    """metrics.jsonl of a run folder. Floats keep their text, so that `==` means bitwise."""

    def __init__(self, folder):
        text = (Path(folder) / "metrics.jsonl").read_text() if (Path(folder) / "metrics.jsonl").exists() else ""
        self.whole = text == "" or text.endswith("\n")
        self.lines = [json.loads(line, parse_float=str, parse_constant=self._no_constant)
                      for line in text.splitlines() if line]
        self.headers = [line["header"] for line in self.lines if "header" in line]
        self.ends = [line["end"] for line in self.lines if "end" in line]
        self.steps = [line for line in self.lines if "loss" in line]
        self.evals = [line for line in self.lines if "eval_loss" in line]

    @staticmethod
    def _no_constant(name):
        raise AssertionError(f"metrics.jsonl has the literal {name}, which is no JSON")

    def texts(self, key, lines=None):
        return [line[key] for line in (self.steps if lines is None else lines)]

    def numbers(self, key, lines=None):
        return [float(text) for text in self.texts(key, lines)]


def steps_logged(folder):
    """Lines of steps so far, a line that is being written left out."""
    return read_bytes(Path(folder) / "metrics.jsonl").count(b'"loss":')


def worst_difference(a, b):
    """Largest relative difference; infinite for lists of unequal length or values that are not finite."""
    if len(a) != len(b) or not a:
        return math.inf
    worst = max(abs(x - y) / max(abs(x), abs(y), 1e-30) for x, y in zip(a, b))
    return worst if worst == worst else math.inf


def says_once(run, pattern):
    """Standard error and output together have the pattern exactly once."""
    return len(re.findall(pattern, run.out + run.err)) == 1


def write_text_corpus(path, size=20000):
    """Text with structure to learn: sentences of a small vocabulary. The same on every call."""
    generator = random.Random(7)
    nouns = "program hacker machine network compiler kernel terminal editor".split()
    verbs = "runs breaks prints reads writes compiles".split()
    sentences = [f"the {generator.choice(nouns)} {generator.choice(verbs)} the {generator.choice(nouns)}. "
                 for _ in range(size // 20)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(sentences)[:size])
    return path


def main():
    global _folder
    if BINARY is None:
        sys.exit(__doc__)
    wanted = sys.argv[3:]
    _folder = Path(tempfile.mkdtemp(prefix="meshard-e2e-"))
    skipped = []
    try:
        for function in _cases:
            if wanted and function.__name__ not in wanted:
                continue
            print(f"== {function.__name__}: {' '.join((function.__doc__ or '').split())}", flush=True)
            begin = time.monotonic()
            try:
                function()
            except Skip as reason:
                skipped.append(f"{function.__name__}: {reason}")
                print(f"skipped: {reason}")
            except Exception:
                expect(f"{function.__name__} runs to its end", False, traceback.format_exc())
            finally:
                end_all()
            print(f"   {time.monotonic() - begin:.1f} s", flush=True)
    finally:
        end_all()
        shutil.rmtree(_folder, ignore_errors=True)
    for reason in skipped:
        print(f"skipped: {reason}")
    print(f"{len(_failures)} checks failed" if _failures else "all checks held")
    for failure in _failures:
        print(f"FAILED: {failure}")
    sys.exit(1 if _failures else SKIPPED if skipped else 0)


def end_all():
    """Nothing that a case started outlives it: its commands, and ranks that are known by our temporary folder."""
    for run in _running:
        run.kill()
    _running.clear()
    for pid, command in processes():
        if command[0] == str(BINARY) and str(_folder) in " ".join(command):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
