#!/usr/bin/env python3
"""Meshard and the peer over two nodes with a slow link, as a table: see network.sh, which makes the nodes and calls this.

Every round runs all links of a mesh and accumulation in turn, Meshard and then the peer; medians over the rounds.
  tok/s       tokens of a step over all ranks / median over the steps (the first ones left out) of the slowest rank's time
  exposed     comm_ms of a step of rank 0: the share of the step in which computation waited for communication
  busy        comm_busy_ms: the share in which something was on the way
"""
import argparse, json, os, shlex, shutil, statistics, subprocess, sys

from compare import BENCH, OUT, PEER, ROOT, TEXT, machine, read_metrics

LINKS = {"unshaped": None, "1gbit": "1gbit", "200mbit": "200mbit"}
MESHES = {"fsdp": (1, 1), "hsdp": (2, 2)}   # name -> ranks a node, dp_outer
PORT = 29577


def shape(options, rate):
    for node in options.nodes:
        subprocess.run(["tc", "-n", node, "qdisc", "delete", "dev", "link0", "root"], stderr=subprocess.DEVNULL)
        if rate:
            # A burst holds two of the largest packets that the kernel makes; the queue is deep enough to lose none.
            subprocess.run(["tc", "-n", node, "qdisc", "add", "dev", "link0", "root", "tbf", "rate", rate, "burst", "128kb",
                            "limit", "8mb"], check=True)


def start(options, node, command, env=None):
    """A command on a node, as a shell would start it there."""
    words = [f"{key}={shlex.quote(value)}" for key, value in (env or {}).items()] + [shlex.join(map(str, command))]
    return subprocess.Popen([options.agent, options.nodes[node], " ".join(words)], cwd=ROOT, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(children, what):
    done = [(child, *child.communicate()) for child in children]
    for child, out, err in done:
        if child.returncode:
            sys.exit(f"{what} ended with {child.returncode}:\n{out[-2000:]}{err[-4000:]}")
    return done[0][1]


def meshard(options, mesh, accumulation, progress):
    ranks, outer = MESHES[mesh]
    run_dir = OUT / f"network-{mesh}"
    shutil.rmtree(run_dir, ignore_errors=True)   # with the lock of a run that was killed
    steps = options.skip + max(3, options.steps // accumulation)
    settings = {"parallel.strategy": mesh, "parallel.dp_outer": outer, "train.steps": steps,
                "train.global_batch_size": 2 * ranks * 8 * accumulation, "lr_schedule.warmup_steps": 1}
    if progress:
        settings["comm.progress"] = progress
    command = ["mpirun", "--host", ",".join(f"{node}:{ranks}" for node in options.nodes), "-n", 2 * ranks,
               "--bind-to", "none", "--mca", "mpi_yield_when_idle", 1, "--mca", "plm_rsh_agent", options.agent,
               "--mca", "oob_tcp_if_include", "link0", "--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp",
               "--mca", "btl_tcp_if_include", "link0", *options.mpirun.split(), options.meshard, "train",
               BENCH / "dense.yaml", "--run-dir", run_dir, "--overwrite"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    finish([start(options, 0, command, root)], "meshard")
    lines = read_metrics(ROOT / run_dir / "metrics.jsonl")[0][options.skip:]
    tokens = lines[1]["tokens"] - lines[0]["tokens"]
    return {"tokens_per_s": 1000 * tokens / statistics.median(l["step_ms"]["max"] for l in lines),
            "exposed": statistics.median(l["comm_ms"] / l["step_ms"]["median"] for l in lines),
            "busy": statistics.median(l.get("comm_busy_ms", 0) / l["step_ms"]["median"] for l in lines),
            "loss": lines[-1]["loss"]}


def peer(options, mesh, accumulation):
    ranks, outer = MESHES[mesh]
    steps = options.skip + max(3, options.steps // accumulation)
    children = []
    for node in (0, 1):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", 2, "--node-rank", node, "--nproc-per-node",
                   ranks, "--master-addr", options.nodes[0], "--master-port", PORT, PEER, "fsdp2", "--preset", "bench",
                   "--batch", 8, "--accum", accumulation, "--replicate", outer, "--steps", steps, "--skip", options.skip,
                   "--text", TEXT]
        children.append(start(options, node, command, {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "link0"}))
    line = json.loads(finish(children, "the peer").strip().splitlines()[-1])
    return {"tokens_per_s": line["tokens_per_s"]}


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def compare_links(options, table, mesh, accumulation):
    ways = options.progress or [None]
    ours = {(link, way): [] for link in options.links for way in ways}
    theirs = {link: [] for link in options.links}
    for _ in range(options.repeats):
        for link in options.links:
            shape(options, LINKS[link])
            for way in ways:
                ours[link, way].append(meshard(options, mesh, accumulation, way))
            if options.peer:
                theirs[link].append(peer(options, mesh, accumulation))
    for way in ways:
        for link in options.links:
            runs, others = ours[link, way], theirs[link]
            speed = median(runs, "tokens_per_s")
            of_unshaped = speed / median(ours[options.links[0], way], "tokens_per_s")
            of_peer = speed / median(others, "tokens_per_s") if others else None
            row = {"mesh": mesh, "accumulation": accumulation, "link": link, "progress": way or "", "tokens_per_s": speed,
                   "of_first_link": of_unshaped, "of_peer": of_peer, "exposed": median(runs, "exposed"),
                   "busy": median(runs, "busy"), "loss": runs[-1]["loss"]}
            table.append(row)
            print(f"{mesh:<6} {accumulation:>5} {link:>9} {way or '-':>7} {speed:>8.0f} {of_unshaped:>9.3f} "
                  f"{of_peer and format(of_peer, '.2f') or '-':>7} {row['exposed']:>8.3f} {row['busy']:>6.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--nodes", nargs=2, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--meshes", nargs="+", choices=MESHES, default=list(MESHES))
    parser.add_argument("--accumulation", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS), help="ratios are to the first one")
    parser.add_argument("--progress", nargs="+", help="values of comm.progress to compare; default: the config's")
    parser.add_argument("--no-peer", dest="peer", action="store_false")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12, help="timed steps without accumulation; with it so many fewer")
    parser.add_argument("--skip", type=int, default=2, help="steps left out of the timing")
    parser.add_argument("--mpirun", default="", help="further options of mpirun, in one argument")
    parser.add_argument("--meshard", default=str(ROOT / "build/meshard"))
    options = parser.parse_args()
    os.chdir(ROOT)
    OUT.mkdir(parents=True, exist_ok=True)

    here, table = machine(), []
    print(f"{here['cpu']}, {here['cores']} cores; commit {here['commit']}; {here['date']}")
    print(f"{'mesh':<6} {'accum':>5} {'link':>9} {'progr.':>7} {'tok/s':>8} {'of first':>9} {'of peer':>7} {'exposed':>8} "
          f"{'busy':>6}")
    for mesh in options.meshes:
        for accumulation in options.accumulation:
            compare_links(options, table, mesh, accumulation)
    (OUT / "network.json").write_text(json.dumps({"machine": here, "rows": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
