#!/usr/bin/env python3
"""The fault catalogue: every fault of configs/regressions/ shows its symptom, and the same config without it does not."""
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import SOURCE, Metrics, case, expect, main, meshard, says_once, scratch, training

FOLDER = "configs/regressions"
RATE = 1e-3
PAIRS = 8 * 16 * 2      # tokens x experts per token in a step of most configs


class Pair:
    """A config run as it stands and with regression.fault=none."""

    def __init__(self, fault, ranks=1, **values):
        self.fault = fault
        self.runs = {}
        for which, extra in (("faulty", {}), ("clean", {"regression.fault": "none"})):
            folder = scratch(f"{fault}-{which}")
            run = training(folder, ranks, f"{FOLDER}/{fault}.yaml", {**values, **extra})
            self.runs[which] = (run, Metrics(folder), folder)
        run, metrics, _ = self.runs["faulty"]
        expect(f"{fault}: says so in its first line", run.out.splitlines()[0].startswith(f"FAULT ON: {fault}"), run)
        if metrics.headers:
            expect(f"{fault}: says so in header and every step's line", metrics.headers[0].get("fault") == fault and
                   all(line.get("fault") == fault for line in metrics.steps), run)
        run, metrics, _ = self.runs["clean"]
        expect(f"{fault}: without it the run ends well and is not marked", run.code == 0 and "fault" not in
               metrics.headers[0] and all("fault" not in line for line in metrics.steps), run)

    def __getitem__(self, which):
        return self.runs[which]

    def ends_well(self):
        expect(f"{self.fault}: the faulty run goes on", self["faulty"][0].code == 0, self["faulty"][0])
        return self

    def symptom(self, what, holds):
        """holds(metrics): with the fault, and not without."""
        for which, expected in (("faulty", True), ("clean", False)):
            run, metrics, _ = self[which]
            expect(f"{self.fault}: {what}: {'yes' if expected else 'not without the fault'}",
                   bool(holds(metrics)) == expected, run)


def layer(metrics, step=1):
    return metrics.steps[step - 1]["moe"]["layers"][0]


def biases(metrics, step=1):
    return [float(text) for text in layer(metrics, step)["bias"]]


def guarded(fault, pattern, ranks=1):
    """The guard ends the run at once and says why."""
    pair = Pair(fault, ranks)
    run, metrics, _ = pair["faulty"]
    expect(f"{fault}: the guard ends it: exit 70", run.code == 70, run)
    expect(f"{fault}: and says once: {pattern}", says_once(run, pattern), run)
    return pair


@case
def clobber_real_buffers():
    """Catches: an audit that overlooks a clobbered buffer; a fault without effect."""
    guarded("clobber_real_buffers",
            "buffer model.layers.1.mlp.gate.e_score_correction_bias holds -?nan where 0 was declared")
    pair = Pair("clobber_real_buffers", **{"regression.guards": "off"}).ends_well()
    pair.symptom("the bias is not finite", lambda m: layer(m)["bias_finite"] is False and layer(m)["bias_min"] is None)
    pair.symptom("all tokens go to experts 0 and 1, 6 of 8 are dead",
                 lambda m: layer(m)["dead"] == 6 and layer(m)["counts"] == [128, 128, 0, 0, 0, 0, 0, 0])
    pair.symptom("the loss is NaN", lambda m: m.steps[0]["loss"] is None and m.steps[0]["nonfinite"])


@case
def bias_cast_to_param_dtype():
    """Catches: a bias in bf16 that nobody notices."""
    guarded("bias_cast_to_param_dtype",
            "buffer model.layers.1.mlp.gate.e_score_correction_bias is of dtype BFloat16 where Float was declared")
    pair = Pair("bias_cast_to_param_dtype", **{"regression.guards": "off"}).ends_well()
    pair.symptom("the bias stalls at 1", lambda m: set(biases(m, 4)) == {1.0})
    run, metrics, _ = pair["clean"]
    expect("clean: every bias has moved by the rate", all(abs(abs(b - 1) - RATE) < 1e-6 for b in biases(metrics)), run)
    pair = Pair("bias_cast_to_param_dtype", **{"regression.guards": "off", "model.moe.expert_bias.initial": 0.0})
    pair.symptom("from 0 the first update is 9.9945e-4", lambda m: max(biases(m)) == 0.00099945068359375)


@case
def counts_in_bf16():
    """Catches: counters that stick, signs from rounded sums."""
    pair = Pair("counts_in_bf16").ends_well()
    total = 32 * 64 * 2
    pair.symptom("pairs are missing", lambda m: layer(m)["count_total"] < total)
    pair.symptom("no count is above 256", lambda m: max(layer(m)["counts"]) <= 256)

    def integer_signs(metrics):
        counts = layer(metrics)["counts"]
        return [(sum(counts) > 8 * n) - (sum(counts) < 8 * n) for n in counts]
    clean = pair["clean"][1]
    signs = integer_signs(clean)
    pair.symptom("the bias moved otherwise than by the signs of the integer counts",
                 lambda m: [round(b / RATE) for b in biases(m)] != signs)


@case
def update_per_microbatch():
    """Catches: more than one update a step."""
    pair = Pair("update_per_microbatch").ends_well()
    pair.symptom("a bias beyond one update", lambda m: max(map(abs, biases(m))) > 1.5 * RATE)
    # Windows that are all alike: the same tokens in every microbatch.
    text = scratch("text") / "same.txt"
    text.parent.mkdir(parents=True)
    text.write_text("abcdefgh01234567" * 200)
    pair = Pair("update_per_microbatch", **{"data.type": "text", "data.files": f"[{text}]", "train.steps": 1}).ends_well()
    pair.symptom("identical microbatches: exactly 4 times as large",
                 lambda m: all(round(b / RATE) in (-4, 0, 4) for b in biases(m)) and any(biases(m)))
    for which in ("faulty", "clean"):
        run, metrics, _ = pair[which]
        expect(f"{which}: no pair is lost", layer(metrics)["count_total"] == PAIRS, run)


@case
def no_outer_reduce():
    """Catches: replicas that part unseen."""
    pair = guarded("no_outer_reduce", r"the expert bias is not the same on all ranks.*layer 1 on rank 1", ranks=2)
    run, metrics, _ = pair["faulty"]
    expect(f"ended after step {len(metrics.steps)}, by step 3", 1 <= len(metrics.steps) <= 3, run)
    expect("its end is in the metrics", metrics.ends and metrics.ends[-1]["exit"] == 70, run)
    run = training(scratch("unguarded"), 2, f"{FOLDER}/no_outer_reduce.yaml", {"regression.guards": "off"})
    expect("with the guards off it goes on", run.code == 0, run)


@case
def count_in_eval():
    """Catches: evaluation that steers the bias."""
    pair = Pair("count_in_eval").ends_well()
    pair.symptom("step 2 counts the evaluated tokens too", lambda m: layer(m, 2)["count_total"] == 2 * PAIRS)
    run, metrics, _ = pair["clean"]
    expect("clean: exactly the tokens of the step", layer(metrics, 2)["count_total"] == PAIRS, run)
    compare_names(pair, "step 2", "moe.count_total", "layer 1")


@case
def double_count_recompute():
    """Catches: recomputation that counts."""
    pair = Pair("double_count_recompute").ends_well()
    pair.symptom("everything is counted twice", lambda m: layer(m)["count_total"] == 2 * PAIRS)
    for key in ("bias", "max_vio"):
        faulty, clean = (layer(pair[which][1], 4)[key] for which in ("faulty", "clean"))
        expect(f"{key} does not show it", faulty == clean, pair["faulty"][0])
    compare_names(pair, "step 1", "moe.count_total", "layer 1")


@case
def weights_from_biased_scores():
    """Catches: a bias that enters the output."""
    first_loss = {}
    for initial in ("0.25", "0.0"):
        pair = Pair("weights_from_biased_scores", **{"model.moe.expert_bias.initial": initial, "train.steps": 1})
        for which in ("faulty", "clean"):
            first_loss[which, initial] = pair[which][1].texts("loss")[0], layer(pair[which][1])["counts"]
    run = pair["faulty"][0]
    expect("clean: a constant on every bias changes no bit", first_loss["clean", "0.25"] == first_loss["clean", "0.0"], run)
    expect("faulty: it changes the loss", first_loss["faulty", "0.25"][0] != first_loss["faulty", "0.0"][0], run)
    expect("faulty: but no choice", first_loss["faulty", "0.25"][1] == first_loss["faulty", "0.0"][1], run)
    expect("without a bias the two are the same", first_loss["faulty", "0.0"] == first_loss["clean", "0.0"], run)


@case
def expert_grad_unscaled():
    """Catches: expert gradients that are ep times too large."""
    pair = Pair("expert_grad_unscaled", ranks=2).ends_well()
    norms = {which: {unit: float(norm) for unit, norm in pair[which][1].steps[0]["unit_grad_norm"].items()}
             for which in ("faulty", "clean")}
    run = pair["faulty"][0]
    for unit, clean in norms["clean"].items():
        factor = norms["faulty"][unit] / clean
        expected = 2 if unit.endswith("experts") else 1
        expect(f"gradient norm of {unit}: {factor:.4f} times the clean one", abs(factor - expected) < 1e-4, run)
    compare_names(pair, "step 1", "grad_norm", "")


@case
def counts_lost_on_resume():
    """Catches: counts that do not survive half a step."""
    pair = Pair("counts_lost_on_resume").ends_well()
    pair.symptom("half of the pairs are missing", lambda m: layer(m)["count_total"] == PAIRS // 2)


def compare_names(pair, *words):
    """`meshard compare` names the first step, metric and layer where the two part."""
    run = meshard("compare", pair["faulty"][2], pair["clean"][2])
    first = next((line for line in run.out.splitlines() if line.startswith("first difference")), "")
    expect(f"{pair.fault}: compare exits 3 and names {', '.join(filter(None, words))}",
           run.code == 3 and all(word in first for word in words), run)
    same = meshard("compare", pair["clean"][2], pair["clean"][2], "--exact")
    expect(f"{pair.fault}: compare of a run with itself exits 0", same.code == 0, same)


@case
def every_config_has_its_test():
    """Catches: a config of the catalogue that no test runs."""
    names = {path.stem for path in (SOURCE / FOLDER).glob("*.yaml")}
    tests = {name for name in globals() if name in names}
    expect(f"{len(names)} configs, all tested", names == tests and len(names) == 10, f"{names ^ tests}")


main()
