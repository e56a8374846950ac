#!/usr/bin/env python3
"""`meshard plan` against an implementation of its own, and what it costs itself."""
import json
import re
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import SOURCE, case, expect, main, meshard, scratch, sets
from reference import (Layout, buffers, merged, model_of, parameters, routing_traffic, step_traffic, tables_of,
                       unit_layouts)

KEYS = {"ranks", "mesh", "strategy", "accumulation_steps", "padding_bytes_total", "parameters", "units",
        "bytes_per_rank", "comm_per_step"}
BYTES = {"parameters", "main_weights", "main_grads", "optimizer", "unsharded_peak", "activations", "total"}
MOE = "configs/tests/moe.yaml"
STRATEGIES = ("ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp")


@case
def goldens():
    """Catches: a reference that is itself wrong. The goldens come from another implementation."""
    cases = json.loads((SOURCE / "tests/goldens/layout_packed.json").read_text())["cases"]
    wrong = []
    for golden in cases:
        layout = Layout(golden["shapes"], golden["num_shards"])
        elements = [layout.elements_of(i) for i in range(len(golden["shapes"]))]
        if (layout.offsets, layout.size, elements) != tuple(
                golden[key] for key in ("offsets", "size", "elements_per_shard")):
            wrong.append(f"{golden['name']} in {golden['num_shards']} shards: {layout.offsets} size {layout.size}")
    expect(f"the reference gives all {len(cases)} goldens", cases and not wrong, "\n".join(wrong))


def planned(config, ranks, **values):
    run = meshard("plan", config, "--ranks", ranks, "--layout", "--json", *sets(values))
    if not expect(f"{config} on {ranks} ranks, {values['parallel.dp_outer']} outer: exit code 0", run.code == 0, run):
        return None, run
    return json.loads(run.out), run


def differences(plan, model, ranks, dtype_bytes, ep=1, elements=True):
    """What of the units, groups and elements is unlike the reference."""
    found, padding = [], 0
    units = unit_layouts(model, ranks, ep)
    if [unit["name"] for unit in plan["units"]] != [name for name, *_ in units]:
        return [f"units {[unit['name'] for unit in plan['units']]}"]
    for unit, (name, mesh, tensors, layout) in zip(plan["units"], units):
        if unit["mesh"] != mesh or len(unit["groups"]) != 1:
            found.append(f"{name}: {len(unit['groups'])} groups on the mesh {unit['mesh']}, expected 1 on {mesh}")
            continue
        padding += layout.padding() * dtype_bytes * (ep if mesh == "expert" else 1)
        expected = [{"fqn": fqn, "shape": shape, "offset": layout.offsets[i]} for i, (fqn, shape) in enumerate(tensors)]
        for i, tensor in enumerate(expected if elements else ()):
            tensor["elements_per_rank"] = layout.elements_of(i)
        for key, value in (("size", layout.size), ("padding", layout.padding()),
                           ("tensors", expected)):
            if unit["groups"][0][key] != value:
                found.append(f"{name}.{key}: {unit['groups'][0][key]}, expected {value}")
    if plan["padding_bytes_total"] != padding:
        found.append(f"padding_bytes_total {plan['padding_bytes_total']}, expected {padding}")
    if plan["parameters"] != parameters(model):
        found.append(f"parameters {plan['parameters']}, expected {parameters(model)}")
    return found


def check_layouts(config, micro_batch, dtype_bytes):
    model = model_of(SOURCE / config)
    for ranks in range(1, 17):
        outer = 2 if ranks % 2 == 0 else 1
        plan, run = planned(config, ranks, **{"parallel.dp_outer": outer, "parallel.dp_shard": "auto",
                                              "train.global_batch_size": ranks * micro_batch})
        if plan is None:
            continue
        found = differences(plan, model, ranks, dtype_bytes)
        expect(f"{config} on {ranks} ranks: units, layout, elements and parameters as the reference's", not found,
               "\n".join(found[:5]))
        head = (plan["ranks"], plan["mesh"]["dp_outer"], plan["mesh"]["dp_shard"], plan["mesh"]["expert_dp"],
                plan["mesh"]["expert"], plan["strategy"], plan["accumulation_steps"])
        expect(f"{config} on {ranks} ranks: mesh, strategy",
               head == (ranks, outer, ranks // outer, ranks, 1, "hsdp", 1), head)


def traffic_differences(plan, expected):
    """All-to-all-v alone is an estimate."""
    sent = {}
    for row in plan["comm_per_step"]:
        sent.setdefault(row["op"], {})[row["axis"]] = {"count": row["count"], "bytes": row["bytes"]}
    found = [] if sent == expected else [f"sends {sent}, expected {expected}"]
    return found + [f"estimate of {row}" for row in plan["comm_per_step"]
                    if row["estimate"] != (row["op"] == "all_to_all_v")]


@case
def quickstart_layouts():
    """Catches: an offset, a size or a count that the runtime would not agree on with another implementation."""
    check_layouts("configs/quickstart.yaml", 8, 4)


@case
def llama_8b_layouts():
    """Catches: the same at sizes beyond 32 bits, in bf16."""
    check_layouts("configs/llama3_8b.yaml", 1, 2)


@case
def expert_layouts():
    """Catches: experts cut over the wrong ranks or not at all, on the mesh of the rest, in another order than they are
    sharded in; traffic of routing that is left out or not marked as an estimate."""
    model, micro_batches, index = model_of(SOURCE / MOE), 2, 0
    for ranks in range(1, 17):
        for ep in (ep for ep in (1, 2, 4, 8) if ranks % ep == 0):
            outer = 2 if ranks % 2 == 0 else 1
            strategy, recompute = STRATEGIES[index % 6], index % 4 >= 2
            index += 1
            plan, run = planned(MOE, ranks, **{
                "parallel.dp_outer": outer, "parallel.expert": ep, "parallel.strategy": strategy,
                "train.activation_checkpoint": "full" if recompute else "none",
                "train.global_batch_size": ranks * micro_batches})
            if plan is None:
                continue
            name = f"{strategy} on {ranks} ranks, expert {ep}"
            found = differences(plan, model, ranks, 4, ep)
            expect(f"{name}: units, layout, elements and parameters as the reference's", not found, "\n".join(found[:5]))
            mesh = {"dp_outer": outer, "dp_shard": ranks // outer, "expert_dp": ranks // ep, "expert": ep}
            expect(f"{name}: mesh", plan["mesh"] == mesh, plan["mesh"])
            found = traffic_differences(plan, merged(
                step_traffic(buffers(model, ranks, ep), strategy, outer, ranks // outer, micro_batches, 4, 4, ep),
                routing_traffic(model, ranks, ep, micro_batches, 8, 32 * 4, recompute)))
            expect(f"{name}: traffic as by hand", not found, "\n".join(found))


@case
def big_models():
    """Catches: a shipped config that does not fit the ranks that it names, or is not the model that it is called after:
    biases, query-key norms, shared experts, dense layers at the start."""
    for name, total in (("llama3_8b", 8_030_261_248), ("llama3_70b", 70_553_706_496), ("glm45_air", 106_852_245_504),
                        ("qwen3_30b_a3b", 30_532_122_624), ("deepseek_v3_671b", 674_836_083_712)):
        path = SOURCE / f"configs/{name}.yaml"
        command = re.search(r"# *meshard (plan .*)", path.read_text())[1].split()
        run = meshard(*command, "--json")
        if not expect(f"{name}: exit code 0", run.code == 0, run):
            continue
        plan, model = json.loads(run.out), model_of(path)
        expect(f"{name}: {total:,} parameters", plan["parameters"]["total"] == total, plan["parameters"])
        mesh = plan["mesh"]
        found = differences(plan, model, plan["ranks"], 2, mesh["expert"], elements=False)
        expect(f"{name}: units, layout and parameters as the reference's", not found, "\n".join(found[:5]))
        sent = step_traffic(buffers(model, plan["ranks"], mesh["expert"]), plan["strategy"], mesh["dp_outer"],
                            mesh["dp_shard"], plan["accumulation_steps"], 2, 2, mesh["expert"])
        if model["moe"]:
            train = tables_of(path)["train",]
            sent = merged(sent, routing_traffic(
                model, plan["ranks"], mesh["expert"], plan["accumulation_steps"],
                train["micro_batch_size"] * train["seq_len"], model["hidden_size"] * 2,
                train["activation_checkpoint"] == "full"))
        found = traffic_differences(plan, sent)
        expect(f"{name}: traffic as by hand", not found, "\n".join(found))


@case
def json_format():
    """Catches: a key of the documented object that is missing, renamed or of another type; sums that do not add up."""
    plan, run = planned("configs/quickstart.yaml", 4, **{"parallel.dp_outer": 2})
    expect("the keys are the documented ones", set(plan) == KEYS, run)
    expect("bytes_per_rank has the documented keys", set(plan["bytes_per_rank"]) == BYTES, run)
    expect("its parts make up its total", sum(v for k, v in plan["bytes_per_rank"].items() if k != "total")
           == plan["bytes_per_rank"]["total"], run)
    expect("all of them are whole numbers", all(type(v) is int for v in plan["bytes_per_rank"].values()), run)
    rows = plan["comm_per_step"]
    expect("rows of comm_per_step have the documented keys",
           rows and all(set(row) == {"op", "axis", "count", "bytes", "estimate"} for row in rows), run)
    unit = plan["units"][0]
    expect("units too", set(unit) == {"name", "mesh", "groups"} and unit["mesh"] == "dense"
           and set(unit["groups"][0]) == {"dtype", "size", "padding", "tensors"}
           and unit["groups"][0]["dtype"] == "fp32", run)
    short = meshard("plan", "configs/quickstart.yaml", "--ranks", 4, "--json")
    tensors = json.loads(short.out)["units"][0]["groups"][0]["tensors"]
    expect("without --layout there are no elements", all(set(t) == {"fqn", "shape", "offset"} for t in tensors), short)
    expect("one object, no other output", short.out.strip().startswith("{") and short.err == "", short)


@case
def for_people():
    """Catches: a text mode that fails where JSON does not, or hides a quantity."""
    run = meshard("plan", "configs/quickstart.yaml", "--ranks", 4, "--ranks-per-node", 2)
    expect("--ranks-per-node is accepted", run.code == 0, run)
    run = meshard("plan", "configs/quickstart.yaml", "--ranks", 4, "--layout")
    expect("exit code 0", run.code == 0, run)
    for word in ("dp_outer 2", "dp_shard 2", "hsdp", "model.layers", "self_attn.q_proj.weight", "padding",
                 "optimizer", "activations", "all_gather", "reduce_scatter", "all_reduce"):
        expect(f"text mode shows {word}", word in run.out, run)
    run = meshard("plan", MOE, "--ranks", 4, "--set", "parallel.expert=2")
    expect("a mixture of experts: exit code 0", run.code == 0, run)
    for word in ("expert_dp 2", "expert 2", "active", "model.layers.1.mlp.experts", "all_to_all ", "all_to_all_v"):
        expect(f"a mixture of experts: text mode shows {word}", word in run.out, run)
    expect("a mixture of experts: one line is an estimate", run.out.count("uniform routing") == 1, run)


def cheap(run, limit_mb):
    expect("exit code 0", run.code == 0, run)
    peak = run.rusage.ru_maxrss / 1024
    seconds = run.rusage.ru_utime + run.rusage.ru_stime
    expect(f"peak memory {peak:.0f} MB, below {limit_mb} MB", peak < limit_mb)
    # Time on the processors: a busy machine does not count.
    expect(f"{seconds:.2f} s of processor time, below 1 s", seconds < 1.0)


@case
def llama_70b_on_1024():
    """Catches: a plan that holds weights, or elements of every rank that nobody asked for."""
    cheap(meshard("plan", "configs/llama3_70b.yaml", "--ranks", 1024), 200)
    for ranks in (2048, 65536):
        run = meshard("plan", "configs/llama3_70b.yaml", "--ranks", ranks, "--json", "--set",
                      f"train.global_batch_size={ranks}")
        expect(f"{ranks} ranks: exit code 0", run.code == 0, run)


@case
def deepseek_on_2048():
    """Catches: the same at 671 B parameters, of which most belong to experts: 58 layers of two units each."""
    for form in ([], ["--json"]):
        run = meshard("plan", "configs/deepseek_v3_671b.yaml", "--ranks", 2048, *form)
        expect(f"expert 64{' in JSON' if form else ''}", "expert 64" in re.sub('[":]', "", run.out), run)
        cheap(run, 300)


@case
def timeline():
    """Catches: a prediction that the command line does not print, a trace file that is not written; sums that differ."""
    trace = scratch("step.json")
    words = ("plan", MOE, "--ranks", 4, "--set", "parallel.expert=2", "--timeline", "--trace", trace)
    run = meshard(*words, "--json")
    step = json.loads(run.out)["timeline"]
    parts = step["compute_s"] + sum(axis["exposed_s"] for axis in step["axes"].values())
    expect("computation and what is exposed make up the step", abs(parts / step["step_s"] - 1) < 1e-6, step)
    expect("the trace has a span of every lane", {event["tid"] for event in json.loads(trace.read_text())["traceEvents"]
                                                  if event["ph"] == "X"} >= {0, 1, 2, 4}, trace)
    run = meshard(*words, "--hardware", "configs/hardware/cpu_2.yaml")
    expect("ranks beyond a node without a network are refused", run.code == 2 and "no `network`" in run.err, run)
    run = meshard(*words)
    expect("in text", all(word in run.out for word in ("tokens/s", "mfu", "exposed", "within a node", "memory")), run)


@case
def search():
    """Catches: a search that takes long on many ranks, or whose settings are not accepted."""
    run = meshard("plan", "configs/deepseek_v3_671b.yaml", "--ranks", 2048, "--search", "--memory-limit", 76, "--json")
    found = json.loads(run.out)["search"]
    seconds = run.rusage.ru_utime + run.rusage.ru_stime
    expect(f"{seconds:.2f} s of processor time, below 5 s", seconds < 5.0)
    expect("ten, and why not others", len(found["best"]) == 10 and found["ruled_out"], found)
    best = found["best"][0]
    run = meshard("plan", "configs/deepseek_v3_671b.yaml", "--ranks", 2048, "--timeline", "--json",
                  *best["settings"].split())
    expect("its settings give its step", run.code == 0 and
           abs(json.loads(run.out)["timeline"]["step_s"] / best["step_s"] - 1) < 1e-9, run)
    run = meshard("plan", MOE, "--ranks", 4, "--search", "--timeline")
    expect("search and timeline exclude each other", run.code == 2, run)


@case
def refused():
    """Catches: a plan of a config that training would refuse."""
    broken = scratch("broken.yaml")
    broken.write_text((SOURCE / "configs/quickstart.yaml").read_text().replace("dp_shard:", "dp_shrad:"))
    for name, words in (("a config with an unknown key", [broken, "--ranks", 4]),
                        ("a mesh that does not fit", ["configs/quickstart.yaml", "--ranks", 5]),
                        ("no such file", [scratch("nothing.yaml"), "--ranks", 4]),
                        ("no ranks", ["configs/quickstart.yaml"]),
                        ("ranks of zero", ["configs/quickstart.yaml", "--ranks", 0])):
        run = meshard("plan", *words)
        expect(f"{name}: exit code 2, nothing planned", run.code == 2 and run.out == "" and run.err != "", run)


main()
