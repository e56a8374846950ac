#!/usr/bin/env python3
"""The ledger of a run, `plan`, and the formulas worked out by hand state the same collectives and bytes."""
import json

from harness import SOURCE, TINY, VARIANTS, Metrics, case, expect, main, meshard, scratch, sets, training
from reference import Layout, llama_units, model_of, step_traffic

STRATEGIES = ("ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp")
MESHES = ((2, 2), (1, 4), (4, 1))
MICROBATCHES = 2


def settings(strategy, outer, inner):
    return {"parallel.dp_outer": outer, "parallel.dp_shard": inner, "parallel.strategy": strategy,
            "train.steps": 3, "train.global_batch_size": 4 * MICROBATCHES, "train.eval_interval": 0,
}


def as_table(rows):
    table = {}
    for row in rows:
        table.setdefault(row["op"], {})[row["axis"]] = {"count": row["count"], "bytes": row["bytes"]}
    return table


def check(name, config, values):
    plan = meshard("plan", config, "--ranks", 4, "--json", *sets(values))
    if not expect(f"{name}: plan exits 0", plan.code == 0, plan):
        return None
    planned = as_table(json.loads(plan.out)["comm_per_step"])
    folder = scratch("run")
    run = training(folder, 4, config, values)
    expect(f"{name}: exit code 0", run.code == 0, run)
    lines = {line["step"]: line["comm_bytes"] for line in Metrics(folder).steps}
    for step in (2, 3):
        expect(f"{name}: step {step} sent what plan says", lines.get(step) == planned,
               f"plan {planned}\nrun  {lines.get(step)}", run)
    return planned


def buffers(config):
    """[(elements of the unit's flat buffer on 4 ranks, whether it stays gathered)]"""
    return [(Layout([shape for _, shape in tensors], 4).size, unit == "root")
            for unit, tensors in llama_units(model_of(SOURCE / config))]


@case
def every_strategy():
    """Catches: a collective too many or too few, one on the wrong axis or of the wrong size; plan and ledger wrong in
    the same way."""
    for strategy in STRATEGIES:
        for outer, inner in MESHES:
            name = f"{strategy} on {outer} x {inner}"
            planned = check(name, TINY, settings(strategy, outer, inner))
            expected = step_traffic(buffers(TINY), strategy, outer, inner, MICROBATCHES, 4, 4)
            expect(f"{name}: plan as by hand", planned == expected, f"plan {planned}\nhand {expected}")


@case
def bf16():
    """Catches: gathers that carry main weights, reductions in another dtype than asked; a tied weight sent twice."""
    for strategy in ("hfsdp", "zero2", "fsdp"):
        check(f"bf16, {strategy} on 2 x 2", VARIANTS, settings(strategy, 2, 2))
    values = {**settings("hfsdp", 2, 2), "precision.param": "bf16", "precision.reduce": "fp32"}
    planned = check("bf16 weights, fp32 reductions", TINY, values)
    expected = step_traffic(buffers(TINY), "hfsdp", 2, 2, MICROBATCHES, 2, 4)
    expect("bf16 weights, fp32 reductions: plan as by hand", planned == expected, f"plan {planned}\nhand {expected}")


@case
def one_rank():
    """Catches: entries for axes of size 1."""
    plan = meshard("plan", TINY, "--ranks", 1, "--json")
    expect("plan for one rank sends nothing", plan.code == 0 and json.loads(plan.out)["comm_per_step"] == [], plan)
    folder = scratch("run")
    run = training(folder, 1, TINY, {"train.steps": 4})
    sent = [line["comm_bytes"] for line in Metrics(folder).steps]
    expect("one rank sends nothing", sent == [{}] * 4, run)


main()
