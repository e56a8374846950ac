#!/usr/bin/env python3
"""A mixture of experts on many meshes gives one run: losses, gradient norms, and bitwise the same expert bias."""
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import Metrics, case, expect, main, scratch, training, worst_difference
from routing import write_routing

MOE = "configs/tests/moe.yaml"
TOLERANCE = 2e-5
SMALLEST_GAP = 1e-5
ONE = (1, 1, 1)
MESHES = ((2, 1, 2), (2, 2, 1), (1, 4, 2), (2, 2, 2), (1, 4, 4), (2, 2, 4), (2, 4, 4))   # dp_outer, dp_shard, expert
HYBRID = {2: "hfsdp", 1: "zero2"}   # strategy by dp_outer, for a second look at each mesh


def run_on(mesh, config=MOE, **values):
    outer, inner, ep = mesh
    name = f"{outer} x {inner}, expert {ep}"
    folder = scratch("run")
    settings = {"parallel.dp_outer": outer, "parallel.dp_shard": inner, "parallel.expert": ep, **values}
    run = training(folder, outer * inner, config, settings)
    expect(f"{name}: exit code 0", run.code == 0, run)
    return name, run, Metrics(folder)


def layers(metrics, key):
    return [[layer[key] for layer in line["moe"]["layers"]] for line in metrics.steps]


def same_run(name, run, metrics, reference):
    expect(f"{name}: 20 steps", len(metrics.steps) == len(reference.steps) == 20, run)
    expect(f"{name}: the same model_hash", metrics.headers[0]["model_hash"] == reference.headers[0]["model_hash"], run)
    for key in ("loss", "grad_norm"):
        worst = worst_difference(metrics.numbers(key), reference.numbers(key))
        expect(f"{name}: {key} as on one rank (worst {worst:.1e}, allowed {TOLERANCE:.0e})", worst <= TOLERANCE, run)
    worst = worst_difference(metrics.numbers("eval_loss", metrics.evals), reference.numbers("eval_loss", reference.evals))
    expect(f"{name}: eval_loss as on one rank (worst {worst:.1e})", worst <= TOLERANCE, run)
    for key in ("aux_loss", "z_loss"):
        ours, theirs = ([float(line["moe"][key]) for line in m.steps] for m in (metrics, reference))
        worst = worst_difference(ours, theirs)
        expect(f"{name}: {key} as on one rank (worst {worst:.1e})", worst <= 1e-4, run)
    for key in ("bias", "counts"):
        expect(f"{name}: {key} of every expert after every step equal to the bit",
               layers(metrics, key) == layers(reference, key), run)


@case
def every_expert_mesh():
    """Catches: a token sent to the wrong expert or back to the wrong place, counts over too few or too many ranks, a
    gradient scaled by ep, samples that depend on the mesh; routing that a file does not carry to another mesh."""
    routing = scratch("routing") / "one_rank.routing"
    routing.parent.mkdir(parents=True)
    _, run, reference = run_on(ONE, **{"regression.record_routing": routing})
    losses = reference.numbers("loss")
    expect(f"the loss falls ({losses[0]:.3f} to {losses[-1]:.3f})", losses[-1] < losses[0] - 0.1, run)
    expect("no pair is lost", layers(reference, "count_total") == [[16 * 8 * 2] * 2] * 20, run)
    gap = min(float(gap) for step in layers(reference, "min_gap") for gap in step)
    expect(f"the smallest gap between a chosen and the next score is {gap:.2e}, above {SMALLEST_GAP:.0e}",
           gap > SMALLEST_GAP, run)
    for mesh in MESHES:
        name, run, metrics = run_on(mesh, **{"regression.replay_routing": routing})
        same_run(f"{name}, replayed", run, metrics, reference)
        name, run, metrics = run_on(mesh, **{"parallel.strategy": HYBRID[mesh[0]]})
        same_run(f"{name}, free, {HYBRID[mesh[0]]}", run, metrics, reference)


@case
def repeated():
    """Catches: sums whose order depends on arrival."""
    first, second = (run_on((2, 2, 2)) for _ in range(2))
    for key in ("loss", "grad_norm"):
        expect(f"{first[0]}, twice: {key} bitwise equal", first[2].texts(key) == second[2].texts(key), second[1])
    expect("twice: the same bias", layers(first[2], "bias") == layers(second[2], "bias"), second[1])


@case
def microbatches_recomputation_evaluation():
    """Catches: a bias updated or counts cleared per microbatch, counted in recomputation or in evaluation."""
    values = {"train.eval_interval": 0}
    name, run, reference = run_on((2, 2, 2), **values, **{"train.micro_batch_size": 4})
    for what, more, bitwise in (("4 microbatches", {"train.micro_batch_size": 1}, False),
                                ("recomputation", {"train.micro_batch_size": 4,
                                                   "train.activation_checkpoint": "full"}, True),
                                ("evaluation after every step", {"train.micro_batch_size": 4, "train.eval_interval": 1},
                                 True)):
        _, run, metrics = run_on((2, 2, 2), **{**values, **more})
        if bitwise:
            expect(f"{what}: losses bitwise equal", metrics.texts("loss") == reference.texts("loss"), run)
        else:
            worst = worst_difference(metrics.numbers("loss"), reference.numbers("loss"))
            expect(f"{what}: losses as with one (worst {worst:.1e})", worst <= TOLERANCE, run)
        for key in ("bias", "counts", "count_total"):
            expect(f"{what}: {key} bitwise equal", layers(metrics, key) == layers(reference, key), run)


@case
def lopsided():
    """Catches: a rank or an expert without a token that skips a collective, or whose gradients are missing or not zero;
    a rank that gets them all and runs out of room."""
    for what, top_k, choose in (("all tokens to expert 0", 1, lambda position, token: (0,)),
                                ("all tokens to the experts of one rank", 2, lambda position, token: (7, 6)),
                                ("one expert without a token", 2, lambda position, token: (token % 7, (token + 3) % 7)),
                                ("every sample's own expert", 1, lambda position, token: (position % 8,))):
        file = write_routing(scratch("routing") / "lopsided.routing", choose, 16 * 20, top_k=top_k)
        values = {"regression.replay_routing": file, "model.moe.num_experts_per_tok": top_k}
        _, run, reference = run_on(ONE, **values)
        for mesh in ((1, 4, 4), (2, 2, 2)):
            name, run, metrics = run_on(mesh, **values)
            same_run(f"{what}, {name}", run, metrics, reference)
            expect(f"{what}, {name}: nothing is not finite", all(not line["nonfinite"] for line in metrics.steps), run)


@case
def softmax_and_groups():
    """Catches: what is special to Qwen's routing or to grouped selection under expert parallelism: over 3 steps, as the
    choice of groups has no gap to assert."""
    for what, values in (
            ("softmax", {"model.moe.scoring_func": "softmax", "model.moe.expert_bias.enabled": "false",
                         "model.moe.n_shared_experts": 0, "model.use_qk_norm": "true",
                         "model.moe.aux_loss.type": "switch"}),
            ("groups, bf16 on the wire", {"model.moe.n_group": 4, "model.moe.topk_group": 2,
                                          "model.attention_bias": "true", "precision.reduce": "bf16"})):
        tolerance = 1e-3 if "bf16" in what else TOLERANCE
        _, run, reference = run_on(ONE, **values, **{"train.steps": 3})
        for mesh in ((2, 2, 2), (1, 4, 4)):
            name, run, metrics = run_on(mesh, **values, **{"train.steps": 3})
            worst = worst_difference(metrics.numbers("loss"), reference.numbers("loss"))
            expect(f"{what}, {name}: losses as on one rank (worst {worst:.1e})", worst <= tolerance, run)


main()
