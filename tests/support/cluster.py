"""A Slurm cluster of its own on this machine: munged, slurmctld and two slurmd, each with its port and folder."""
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

NODES = ("node1", "node2")
CORES = 16   # what each node says it has: several jobs of the tests run at a time
DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")

CONF = """\
ClusterName=meshard
SlurmctldHost={host}
SlurmUser=root
SlurmctldPort={ports[0]}
AuthType=auth/munge
# A requeued job waits until the credential of its first start has expired.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
PlugStackConfig={folder}/plugstack.conf
TaskProlog={folder}/task_prolog
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
MpiDefault=none
ReturnToService=1
KillWait=2
MessageTimeout=10
InactiveLimit=0
SlurmctldTimeout=60
SlurmdTimeout=60
{nodes}
PartitionName=main Nodes=node1,node2 Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=node1,node2 MaxTime=60 State=UP PriorityTier=9 PreemptMode=OFF
"""


def missing():
    """What this machine lacks to run a cluster, or nothing."""
    if os.geteuid() != 0:
        return "the daemons of Slurm need root"
    absent = [name for name in (*DAEMONS, *CLIENTS) if not shutil.which(name, path=SEARCH)]
    return f"no {', '.join(absent)} here; Debian: apt-get install slurm-wlm munge slurm-wlm-torque" if absent else None


SEARCH = os.environ["PATH"] + ":/usr/sbin:/sbin"


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def die_with_parent():
    # However this script is killed.
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Cluster:
    """`with Cluster(folder) as cluster:` daemons run inside; whatever happens they end with it, and their jobs."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.daemons = []

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        os.environ.update({"PATH": SEARCH, "SLURM_CONF": str(self.folder / "slurm.conf")})
        try:
            self.configure()
            self.start_munge()
            self.start("slurmctld", "-D")
            for node in NODES:
                self.start("slurmd", "-D", "-N", node)
            self.await_nodes()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def configure(self):
        # munged insists on a private folder.
        self.folder.mkdir(mode=0o755, parents=True)
        for name in ("state", *(f"{kind}.{node}" for kind in ("spool", "tmp") for node in NODES)):
            (self.folder / name).mkdir()
        ports = free_ports(1 + len(NODES))
        host = socket.gethostname()
        nodes = "\n".join(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CORES} "
                          f"Boards=1 SocketsPerBoard=1 CoresPerSocket={CORES} ThreadsPerCore=1 State=UNKNOWN"
                          for node, port in zip(NODES, ports[1:]))
        conf = CONF.format(host=f"{host}(127.0.0.1)", ports=ports, folder=self.folder, nodes=nodes)
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "plugstack.conf").write_text("optional spank_pbs.so\n")
        prolog = self.folder / "task_prolog"
        # mpirun's daemons of both nodes would share a folder, which crashes them at times.
        prolog.write_text(f'#!/bin/sh\necho "export TMPDIR={self.folder}/tmp.$SLURMD_NODENAME"\n'
                          'echo "export PBS_NODEFILE=$(/usr/bin/generate_pbs_nodefile)"\n')
        prolog.chmod(0o755)

    def start_munge(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        names = {"socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
        options = [f"--{option}={self.folder / name}" for option, name in names.items()]
        self.start("munged", "--foreground", "--force", f"--key-file={key}", *options)
        self.await_(lambda: (self.folder / "munge.socket").exists(), 10, "munged's socket")

    def start(self, program, *options):
        path = shutil.which(program, path=SEARCH)
        output = open(self.folder / f"{program}.{len(self.daemons)}.out", "w")
        self.daemons.append(subprocess.Popen([path, *options], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                             start_new_session=True, preexec_fn=die_with_parent))

    def await_nodes(self):
        self.await_(lambda: self.call("sinfo", "-h", "-t", "idle", "-o", "%D", check=False).strip() == str(len(NODES)),
                    30, "two idle nodes")

    def await_(self, condition, limit, what):
        deadline = time.monotonic() + limit
        while not condition():
            for daemon in self.daemons:
                if daemon.poll() is not None:
                    raise AssertionError(f"{daemon.args[0]} ended with {daemon.returncode}\n{self.logs()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {limit} s for {what}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self):
        """The ends of the daemons' logs."""
        return "\n".join(f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])
                         for path in sorted((*self.folder.glob("*.log"), *self.folder.glob("*.out"))))

    def call(self, *command, check=True, cwd=None, env=None):
        """Output of a client command."""
        done = subprocess.run(list(map(str, command)), env={**os.environ, **(env or {})}, cwd=cwd, capture_output=True,
                              text=True, timeout=60, stdin=subprocess.DEVNULL)
        if check and done.returncode != 0:
            raise AssertionError(f"{command} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def end(self):
        if len(self.daemons) > 1:
            self.call("scancel", "--user=root", check=False)
            deadline = time.monotonic() + 8
            while time.monotonic() < deadline and self.call("squeue", "-h", check=False).strip():
                time.sleep(0.2)
        for daemon in reversed(self.daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()
        self.daemons.clear()


if __name__ == "__main__":   # a cluster to try things on: cluster.py FOLDER
    with Cluster(sys.argv[1]) as _:
        print(f"export SLURM_CONF={os.environ['SLURM_CONF']}", flush=True)
        signal.pause()
