#!/usr/bin/env python3
"""The ledger of a run, `plan`, and the formulas worked out by hand state the same collectives and bytes."""
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import SOURCE, TINY, VARIANTS, Metrics, case, expect, main, meshard, scratch, sets, training
from reference import buffers, merged, model_of, routing_traffic, step_traffic
from routing import read_routing, write_routing

STRATEGIES = ("ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp")
MESHES = ((2, 2), (1, 4), (4, 1))
MICROBATCHES = 2
MOE = "configs/tests/moe.yaml"
MOE_MESHES = ((2, 2, 2), (1, 4, 4), (1, 4, 2))   # dp_outer, dp_shard, expert
EXPERTS, HIDDEN, TOKENS = 8, 32, 8              # of moe.yaml; tokens of a microbatch


def settings(strategy, outer, inner):
    return {"parallel.dp_outer": outer, "parallel.dp_shard": inner, "parallel.strategy": strategy,
            "train.steps": 3, "train.global_batch_size": 4 * MICROBATCHES, "train.eval_interval": 0}


def as_table(rows):
    table = {}
    for row in rows:
        table.setdefault(row["op"], {})[row["axis"]] = {"count": row["count"], "bytes": row["bytes"]}
    return table


def check(name, config, values, sent=lambda planned, step: planned):
    """A run sends what plan says, or what `sent` makes of it; the plan, and the run's metrics."""
    plan = meshard("plan", config, "--ranks", 4, "--json", *sets(values))
    if not expect(f"{name}: plan exits 0", plan.code == 0, plan):
        return None, None
    planned = as_table(json.loads(plan.out)["comm_per_step"])
    folder = scratch("run")
    run = training(folder, 4, config, values)
    expect(f"{name}: exit code 0", run.code == 0, run)
    metrics = Metrics(folder)
    lines = {line["step"]: line["comm_bytes"] for line in metrics.steps}
    for step in (2, 3):
        expected = sent(planned, step)
        expect(f"{name}: step {step} sent what is expected", lines.get(step) == expected,
               f"expected {expected}\nrun      {lines.get(step)}", run)
    return planned, metrics


def by_hand(config, strategy, outer, inner, param_bytes=4, wire_bytes=4, ep=1):
    return step_traffic(buffers(model_of(SOURCE / config), 4, ep), strategy, outer, inner, MICROBATCHES, param_bytes,
                        wire_bytes, ep)


@case
def every_strategy():
    """Catches: a collective too many or too few, one on the wrong axis or of the wrong size; plan and ledger wrong in
    the same way."""
    for strategy in STRATEGIES:
        for outer, inner in MESHES:
            name = f"{strategy} on {outer} x {inner}"
            planned, _ = check(name, TINY, settings(strategy, outer, inner))
            expected = by_hand(TINY, strategy, outer, inner)
            expect(f"{name}: plan as by hand", planned == expected, f"plan {planned}\nhand {expected}")


@case
def bf16():
    """Catches: gathers that carry main weights, reductions in another dtype than asked; a tied weight sent twice."""
    for strategy in ("hfsdp", "zero2", "fsdp"):
        check(f"bf16, {strategy} on 2 x 2", VARIANTS, settings(strategy, 2, 2))
    values = {**settings("hfsdp", 2, 2), "precision.param": "bf16", "precision.reduce": "fp32"}
    planned, _ = check("bf16 weights, fp32 reductions", TINY, values)
    expected = by_hand(TINY, "hfsdp", 2, 2, 2, 4)
    expect("bf16 weights, fp32 reductions: plan as by hand", planned == expected, f"plan {planned}\nhand {expected}")


def uniform_routing():
    """Every expert gets as many pairs of each sample as any other: what plan assumes."""
    def two(_, token):
        return token % EXPERTS, (token + 1) % EXPERTS
    return write_routing(scratch("routing") / "uniform.routing", two, 3 * 4 * MICROBATCHES, batch=4 * MICROBATCHES)


def rows_of_rank_0(choices, step, ep):
    """Rows that leave rank 0 for other ranks' experts and that come in for its own, in one pass over a step. Its expert
    group is ranks 0 to ep - 1; microbatch a of rank r is sample a * 4 + r of the step."""
    rows = 0
    for a in range(MICROBATCHES):
        for rank in range(ep):
            for ids in choices[(step - 1) * 4 * MICROBATCHES + a * 4 + rank]:
                mine = sum(expert // (EXPERTS // ep) == 0 for expert in ids)
                rows += len(ids) - mine if rank == 0 else mine
    return rows


def check_experts(name, strategy, outer, inner, ep, recompute, uniform, element_bytes=4, **values):
    routing = uniform_routing() if uniform else scratch("choices.routing")
    values = {**settings(strategy, outer, inner), "parallel.expert": ep, **values,
              "train.activation_checkpoint": "full" if recompute else "none",
              f"regression.{'replay' if uniform else 'record'}_routing": routing}

    def sent(planned, step):
        if uniform or ep == 1:
            return planned
        # Dispatch sends the one, combine the other; backward has both too, and so has a forward that is repeated.
        size = rows_of_rank_0(read_routing(routing), step, ep) * HIDDEN * element_bytes * (3 if recompute else 2)
        return {**planned, "all_to_all_v": {"expert": {**planned["all_to_all_v"]["expert"], "bytes": size}}}

    planned, metrics = check(name, MOE, values, sent)
    expected = merged(by_hand(MOE, strategy, outer, inner, element_bytes, element_bytes, ep), routing_traffic(
        model_of(SOURCE / MOE), 4, ep, MICROBATCHES, TOKENS, HIDDEN * element_bytes, recompute))
    expect(f"{name}: plan as by hand", planned == expected, f"plan {planned}\nhand {expected}")
    choices, batch = read_routing(routing), 4 * MICROBATCHES
    for line in metrics.steps if metrics else ():
        step = choices[(line["step"] - 1) * batch:line["step"] * batch]
        counts = [[sum(sample[i].count(expert) for sample in step) for expert in range(EXPERTS)] for i in range(2)]
        expect(f"{name}: step {line['step']} counts the pairs that its routing file has",
               [layer["counts"] for layer in line["moe"]["layers"]] == counts, f"{line['moe']}\nfile {counts}")


@case
def experts():
    """Catches: experts that are gathered or reduced with the rest of their layer, counts sent again when a forward is
    repeated, rows that are sent and not counted. Rank 0 writes the metrics, so its rows are compared: under forced
    uniform routing with plan, else with what the recorded choices make of them; those of every rank are in
    tests/mpi/moe_layer_test.cpp. Strategies and meshes take turns with recomputation and with free routing."""
    for i, strategy in enumerate(STRATEGIES):
        for j, (outer, inner, ep) in enumerate(MOE_MESHES):
            recompute, uniform = (i + j) % 2 == 1, (i // 2 + j) % 2 == 1
            name = f"{strategy} on {outer} x {inner}, expert {ep}, {'uniform' if uniform else 'free'}"
            check_experts(name + ", recomputed" * recompute, strategy, outer, inner, ep, recompute, uniform)
    check_experts("hfsdp on 2 x 2, expert 1", "hfsdp", 2, 2, 1, True, False)
    check_experts("bf16, hsdp on 2 x 2, expert 2", "hsdp", 2, 2, 2, False, False, 2,
                  **{"precision.param": "bf16", "precision.reduce": "bf16"})


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
