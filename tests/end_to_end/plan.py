#!/usr/bin/env python3
"""`meshard plan` against an implementation of its own, and what it costs itself."""
import json

from harness import SOURCE, case, expect, main, meshard, scratch, sets
from reference import Layout, llama_units, model_of

KEYS = {"ranks", "mesh", "strategy", "accumulation_steps", "padding_bytes_total", "parameters", "units",
        "bytes_per_rank", "comm_per_step"}
BYTES = {"parameters", "main_weights", "main_grads", "optimizer", "unsharded_peak", "activations", "total"}
RSS_LIMIT_MB = 200


@case
def goldens():
    """Catches: a reference that is itself wrong. The goldens come from another implementation."""
    cases = json.loads((SOURCE / "tests/goldens/layout.json").read_text())["cases"]
    wrong = []
    for golden in cases:
        layout = Layout(golden["shapes"], golden["dp_size"])
        rows = [list(shard) for shard in zip(*(layout.rows_of(i) for i in range(len(golden["shapes"]))))]
        if (layout.chunk, layout.offsets, layout.size, rows) != tuple(
                golden[key] for key in ("chunk", "offsets", "size", "rows_per_rank")):
            wrong.append(f"{golden['name']} on {golden['dp_size']}: {layout.offsets} size {layout.size}")
    expect(f"the reference gives all {len(cases)} goldens", cases and not wrong, "\n".join(wrong))


def planned(config, ranks, **values):
    run = meshard("plan", config, "--ranks", ranks, "--layout", "--json", *sets(values))
    if not expect(f"{config} on {ranks} ranks, {values['parallel.dp_outer']} outer: exit code 0", run.code == 0, run):
        return None, run
    return json.loads(run.out), run


def differences(plan, model, ranks, dtype_bytes):
    """What of the units, groups and rows is unlike the reference."""
    found = []
    units = llama_units(model)
    if [unit["name"] for unit in plan["units"]] != [name for name, _ in units]:
        return [f"units {[unit['name'] for unit in plan['units']]}"]
    padding = 0
    for unit, (name, tensors) in zip(plan["units"], units):
        if len(unit["groups"]) != 1:
            found.append(f"{name}: {len(unit['groups'])} groups")
            continue
        group, layout = unit["groups"][0], Layout([shape for _, shape in tensors], ranks)
        padding += layout.padding() * dtype_bytes
        expected = [{"fqn": fqn, "shape": shape, "offset": layout.offsets[i], "rows_per_rank": layout.rows_of(i)}
                    for i, (fqn, shape) in enumerate(tensors)]
        for key, value in (("chunk", layout.chunk), ("size", layout.size), ("padding", layout.padding()),
                           ("tensors", expected)):
            if group[key] != value:
                found.append(f"{name}.{key}: {group[key]}, expected {value}")
    if plan["padding_bytes_total"] != padding:
        found.append(f"padding_bytes_total {plan['padding_bytes_total']}, expected {padding}")
    return found


def check_layouts(config, micro_batch, dtype_bytes):
    model = model_of(SOURCE / config)
    parameters = sum(layout for _, tensors in llama_units(model) for layout in Layout([s for _, s in tensors], 1).numel)
    for ranks in range(1, 17):
        outer = 2 if ranks % 2 == 0 else 1
        plan, run = planned(config, ranks, **{"parallel.dp_outer": outer, "parallel.dp_shard": "auto",
                                              "train.global_batch_size": ranks * micro_batch})
        if plan is None:
            continue
        found = differences(plan, model, ranks, dtype_bytes)
        expect(f"{config} on {ranks} ranks: units, layout and rows as the reference's", not found, "\n".join(found[:5]))
        head = (plan["ranks"], plan["mesh"]["dp_outer"], plan["mesh"]["dp_shard"], plan["mesh"]["expert_dp"],
                plan["mesh"]["expert"], plan["strategy"], plan["accumulation_steps"], plan["parameters"])
        expect(f"{config} on {ranks} ranks: mesh, strategy, parameters",
               head == (ranks, outer, ranks // outer, ranks, 1, "hsdp", 1, {"total": parameters, "active": parameters}),
               head)


@case
def quickstart_layouts():
    """Catches: an offset, a size or a row count that the runtime would not agree on with another implementation."""
    check_layouts("configs/quickstart.yaml", 8, 4)


@case
def llama_8b_layouts():
    """Catches: the same at sizes beyond 32 bits, in bf16."""
    check_layouts("configs/llama3_8b.yaml", 1, 2)


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
           and set(unit["groups"][0]) == {"dtype", "chunk", "size", "padding", "tensors"}
           and unit["groups"][0]["dtype"] == "fp32", run)
    short = meshard("plan", "configs/quickstart.yaml", "--ranks", 4, "--json")
    tensors = json.loads(short.out)["units"][0]["groups"][0]["tensors"]
    expect("without --layout there are no rows", all(set(t) == {"fqn", "shape", "offset"} for t in tensors), short)
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


@case
def llama_70b_on_1024():
    """Catches: a plan that holds weights, or rows of every rank that nobody asked for."""
    run = meshard("plan", "configs/llama3_70b.yaml", "--ranks", 1024)
    expect("exit code 0", run.code == 0, run)
    peak = run.rusage.ru_maxrss / 1024
    seconds = run.rusage.ru_utime + run.rusage.ru_stime
    expect(f"peak memory {peak:.0f} MB, below {RSS_LIMIT_MB} MB", peak < RSS_LIMIT_MB)
    # Time on the processors: a busy machine does not count.
    expect(f"{seconds:.2f} s of processor time, below 1 s", seconds < 1.0)
    for ranks in (2048, 65536):
        run = meshard("plan", "configs/llama3_70b.yaml", "--ranks", ranks, "--json", "--set",
                      f"train.global_batch_size={ranks}")
        expect(f"{ranks} ranks: exit code 0", run.code == 0, run)


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
