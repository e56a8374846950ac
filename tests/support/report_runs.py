"""Run folders for tests of `meshard report`: what a training of so many steps would have left, without the training.

    report_runs.py FOLDER [RUNS] [LINES]      a sweep of that many points (50) with so many lines each (500)
"""
import json
import math
import os
import random
import sys
from pathlib import Path

VERSIONS = "meshard      {}\nLibTorch     2.13.0\nMPI          Open MPI v4.1.4"
DENSE = {"ranks": 4, "mesh": {"dp_outer": 2, "dp_shard": 2, "expert_dp": 4, "expert": 1}, "strategy": "hsdp",
         "places": [{"host": "node1", "device": "cpu"}] * 2 + [{"host": "node2", "device": "cpu"}] * 2,
         "parameters": 1199232, "active_parameters": 1199232, "steps_done": 0}
LINE = ('{{"step":{step},"tokens":{tokens},"loss":{loss!r},"bits_per_byte":{bits!r},"grad_norm":{norm!r},"lr":{lr!r},'
        '"step_ms":{{"min":{low!r},"median":{median!r},"max":{high!r}}},"tokens_per_s":{speed!r},'
        '"tflops":0.016741717580724413,"mfu":null,"mem_peak_bytes":{memory},"data_ms":0.02108,"comm_ms":{comm!r},'
        '"comm_exposed_ms":{{"dp_shard":{comm!r}}},"comm_busy_ms":{busy!r},'
        '"comm_bytes":{{"all_gather":{{"dp_shard":{{"count":9,"bytes":6799104}},'
        '"expert_dp":{{"count":6,"bytes":5308416}}}},"all_reduce":{{"world":{{"count":1,"bytes":288}}}},'
        '"reduce_scatter":{{"dp_shard":{{"count":5,"bytes":3552768}},"expert_dp":{{"count":3,"bytes":2654208}}}}}},'
        '"checkpoint_stall_ms":{stall!r},{moe}"nonfinite":[]}}\n')


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def header(version="0.1.0", **changes):
    return compact({"header": {"versions": VERSIONS.format(version), **DENSE, **changes}}) + "\n"


def end(code, step, reason):
    return compact({"end": {"exit": code, "step": step, "reason": reason}}) + "\n"


def evaluation(step, loss):
    return compact({"step": step, "eval_loss": loss, "eval_bits_per_byte": loss / math.log(2)}) + "\n"


def layers_text(generator, step, layers, experts, pairs, per_layer):
    """Experts of unequal popularity, which the bias evens out; the last one of layer 1 gets nothing for a while."""
    parts = []
    for layer in range(1, layers + 1):
        pull = math.exp(-step / 120)
        wish = [1 + pull * math.sin(3.1 * expert + layer) + generator.gauss(0, 0.03) for expert in range(experts)]
        if layer == 1 and step < 60:
            wish[-1] = 0
        counts = [max(0, round(pairs * share / sum(wish))) for share in wish]
        bias = [min(step, 120) * -1e-3 * math.sin(3.1 * expert + layer) for expert in range(experts)]
        mean = sum(counts) / experts
        fields = {"layer": layer, "count_total": sum(counts), "max_vio": max(counts) / mean - 1,
                  "dead": counts.count(0), "bias_min": min(bias), "bias_max": max(bias), "bias_finite": True,
                  "dropped": 0, "min_gap": 1e-6}
        parts.append({**fields, "counts": counts, "bias": bias} if per_layer else fields)
    return '"moe":' + compact({"aux_loss": 0.01 + 0.01 / step, "z_loss": 0.0, "layers": parts}) + ","


def step_lines(lines, interval=1, seed=1, lr=3e-3, floor=1.6, speed=1.3e4, experts=0, layers=3, per_layer=False):
    """Lines of steps 1, and then every `interval` steps, of a training that goes down to about `floor`."""
    generator, batch = random.Random(seed), 4096
    for step in [1, *range(interval, lines * interval, interval)][:lines] if interval > 1 else range(1, lines + 1):
        share = step / (lines * interval)
        loss = floor + (5.56 - floor) / (1 + step * lr * 8) ** 0.8 + generator.gauss(0, 0.03)
        median = 1e3 * batch / speed * (1 + 0.03 * generator.random() + 0.6 * (generator.random() < 0.004))
        moe = layers_text(generator, step, layers, experts, 2 * batch, per_layer) if experts else ""
        yield LINE.format(step=step, tokens=step * batch, loss=loss, bits=loss / math.log(2),
                          norm=0.5 + 4 / step + 0.1 * generator.random(),
                          lr=lr * min(1.0, step / (20 * interval)) * (0.55 + 0.45 * math.cos(math.pi * share)),
                          low=median * 0.98, median=median, high=median * 1.02, speed=1e3 * batch / (median * 1.02),
                          memory=251_000_000 + 1_000_000 * (step > 20), comm=median * (0.2 + 0.05 * generator.random()),
                          busy=median * 0.4,
                          stall=median * 0.4 if step % (100 * interval) == 0 else 0.0, moe=moe)


def config_text(name, steps, settings):
    """A config.yaml with just these keys, nested as in the file."""
    tree = {}
    keys = {"run.name": name, "run.seed": 1234, "train.steps": steps, "checkpoint.interval": 0, **settings}
    for key, value in keys.items():
        section, leaf = key.rsplit(".", 1)
        tree.setdefault(section, {})[leaf] = value
    lines = ["schema: 1"]
    for section, leaves in tree.items():
        lines += [f"{section}:", *(f"  {leaf}: {value}" for leaf, value in leaves.items())]
    return "\n".join(lines) + "\n"


def write_run(folder, text, steps=0, settings=None):
    """A run folder of this metrics.jsonl and config."""
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(text)
    (folder / "config.yaml").write_text(config_text(folder.name, steps, settings or {}))
    return folder


def write_sweep(folder, points):
    """sweep.json and points.txt of {name: settings}; the points themselves are the caller's."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = [{"name": name, "settings": settings} for name, settings in points.items()]
    (folder / "sweep.json").write_text(json.dumps({"schema": 1, "points": listed}))
    (folder / "points.txt").write_text("".join(f"{name}\n" for name in points))
    return folder


def evaluated(lines, every, offset):
    """The lines, with an evaluation after every so many."""
    for number, line in enumerate(lines, 1):
        yield line
        if number % every == 0:
            values = json.loads(line)
            yield evaluation(values["step"], values["loss"] + offset)


# Settings that a base config was changed in from point to point, beside those of the sweep.
MORE_SETTINGS = ("model.hidden_size", "model.num_hidden_layers", "model.intermediate_size", "optimizer.weight_decay",
                 "optimizer.beta2", "lr_schedule.warmup_steps", "train.seq_len", "train.max_grad_norm",
                 "data.held_out.fraction", "logging.interval")


def write_big_sweep(folder, runs, lines):
    """A sweep as people have it: most points done, some failed, one missing, some with experts."""
    rates = [3e-4, 1e-3, 3e-3, 6e-3, 1e-2]
    points = {}
    for index in range(runs):
        lr, batch, seed = rates[index % 5], (16, 32)[index // 5 % 2], 1 + index // 10
        points[f"lr={lr:g},global_batch_size={batch},seed={seed}"] = {
            "optimizer.lr": lr, "train.global_batch_size": batch, "run.seed": seed}
    write_sweep(folder, points)
    for index, (name, settings) in enumerate(points.items()):
        if index == 41:
            continue
        lr, batch = settings["optimizer.lr"], settings["train.global_batch_size"]
        experts = {"experts": 16, "per_layer": index % 10 == 2} if index % 5 == 2 else {}
        floor = 1.55 + 0.12 * abs(math.log10(lr / 3e-3)) ** 2 + 0.02 * (batch == 16)
        body = step_lines(lines, 10, seed=index, lr=lr, floor=floor, speed=1.3e4 + 40 * index, **experts)
        body = list(evaluated(body, max(1, lines // 10), 0.22))
        steps = 10 * lines - 10
        if index in (4, 9):    # diverged
            body = body[:len(body) // 3]
            closing = end(70, 3 * lines, "the gradient of model.layers.2.mlp.up_proj is not finite at step "
                          f"{3 * lines + 7}, rank 1 on node2")
        elif index == 17:
            body, closing = body[:len(body) // 2], end(75, 5 * lines, "stopped by SIGUSR1; its checkpoint is complete")
        else:
            closing = end(0, steps, "done")
        again = header(steps_done=5 * lines) if index in (6, 12) else ""
        half = len(body) // 2
        text = header() + "".join(body[:half]) + again + "".join(body[half:]) + closing
        more = {key: 64 * (1 + index % 2) for key in MORE_SETTINGS}
        write_run(folder / name, text, steps, {**more, **settings})
        if index == 17:
            (folder / name / "checkpoints" / f"step-{5 * lines:08}").mkdir(parents=True)
            (folder / name / "checkpoints" / f"step-{5 * lines:08}" / ".metadata").touch()
    return folder


def write_long_runs(folder, runs, lines, kinds=5):
    """`runs` folders of `lines` lines each. There are `kinds` different files; the others are links to them."""
    for index in range(runs):
        if index < kinds:
            body = "".join(evaluated(step_lines(lines, seed=index, floor=1.5 + 0.1 * index), lines // 20, 0.2))
            write_run(folder / f"run{index:02}", header() + body + end(0, lines, "done"), lines)
        else:
            name = folder / f"run{index:02}"
            name.mkdir()
            for file in ("metrics.jsonl", "config.yaml"):
                os.link(folder / f"run{index % kinds:02}" / file, name / file)
    return folder
    return folder


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[2:]]
    write_big_sweep(Path(sys.argv[1]), *(numbers + [50, 500][len(numbers):]))
