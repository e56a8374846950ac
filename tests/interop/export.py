"""What `meshard export` writes is a model of Hugging Face's: transformers loads all of it and computes the same logits
as the checkpoint's model, and what transformers saves goes back into Meshard with the same held-out loss.

Called as `export.py SOURCE_FOLDER MESHARD INTEROP_HF_LOGITS [CASE...]`. Needs what setup.sh installs.
"""
import json
import math
import random
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOGITS = Path(sys.argv.pop(3)).resolve() if len(sys.argv) > 3 else None

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import SOURCE, TINY, VARIANTS, Metrics, Run, Skip, case, expect, main, meshard, says_once, scratch, \
    training

MOE = "configs/tests/moe.yaml"
VERSIONS = ("5.18.0", "4.57.6")
FP32_TOLERANCE = 1e-5   # of the largest logit
BF16_TOLERANCE = 3e-2   # of the largest logit: every activation is rounded to 8 bits, some dozen times in a row
FLIPPED = 1 / 8         # of the tokens: where two experts score alike, rounding takes a token to the other one
LOSS_TOLERANCE = 1e-6   # the same weights on another number of ranks
STEPS = 3
generator = random.Random(5)
INPUT_IDS = [[generator.randrange(260) for _ in range(16)] for _ in range(2)]

# Large weights, a large rate and large steps of the bias: after three steps every part of a model matters.
TRAINED = {"train.steps": STEPS, "train.eval_interval": STEPS, "train.eval_batches": 2, "checkpoint.interval": STEPS,
           "optimizer.lr": 0.01, "model.initializer_range": 0.1}
BIAS_STEP = {"model.moe.expert_bias.update_rate": 0.02}
SOFTMAX = {"model.moe.scoring_func": "softmax", "model.moe.n_shared_experts": 0,
           "model.moe.routed_scaling_factor": 1.0, "model.use_qk_norm": "true"}
# Name: class, ranks, config, values.
MODELS = {
    "glm": ("Glm4MoeForCausalLM", 2, MOE, {**BIAS_STEP, "model.partial_rotary_factor": 0.5, "parallel.expert": 2}),
    "glm_groups": ("Glm4MoeForCausalLM", 1, MOE, {
        **BIAS_STEP, "model.moe.n_group": 4, "model.moe.topk_group": 2, "model.use_qk_norm": "true",
        "model.attention_bias": "true", "model.tie_word_embeddings": "true", "model.moe.n_shared_experts": 2}),
    "glm_plain": ("Glm4MoeForCausalLM", 1, MOE, {
        "model.moe.expert_bias.enabled": "false", "model.moe.n_shared_experts": 0, "model.moe.first_k_dense_replace": 0,
        "model.moe.norm_topk_prob": "false"}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", 2, MOE, {**SOFTMAX, "model.moe.capacity_factor": 8.0, "parallel.expert": 2}),
    "llama": ("LlamaForCausalLM", 2, TINY, {"model.rope_theta": 500000.0}),
    "llama_tied": ("LlamaForCausalLM", 1, TINY, {"model.tie_word_embeddings": "true"}),
    "qwen3": ("Qwen3ForCausalLM", 1, TINY, {"model.use_qk_norm": "true"}),
    "variants": ("Qwen3ForCausalLM", 2, VARIANTS, {"model.partial_rotary_factor": 1.0, "precision.param": "fp32"}),
}


def checkpoint(folder):
    return folder / "checkpoints" / f"step-{STEPS:08}"


def export(folder, dtype):
    out = folder / dtype
    run = meshard("export", checkpoint(folder), "--out", out, "--dtype", dtype)
    expect(f"{folder.name}, {dtype}: exit code 0", run.code == 0 and says_once(run, f"exported to {out}"), run)
    dropping = "capacity_factor" in str(MODELS[folder.name][3])
    expect(f"{folder.name}, {dtype}: what differs is warned of, and only that",
           says_once(run, "capacity_factor") if dropping else not run.err, run)
    return out


def header(folder):
    """{tensor: entry} of the one file of a model."""
    text = (folder / "model.safetensors").read_bytes()
    length, = struct.unpack("<Q", text[:8])
    return {name: entry for name, entry in json.loads(text[8:8 + length]).items() if name != "__metadata__"}


def check_dtypes(name, folder):
    names = {"fp32": "F32", "bf16": "BF16"}
    tensors = header(folder)
    biases = {tensor for tensor in tensors if tensor.endswith("e_score_correction_bias")}
    others = {entry["dtype"] for tensor, entry in tensors.items() if tensor not in biases}
    expect(f"{name}, {folder.name}: the weights are {names[folder.name]}", others == {names[folder.name]}, others)
    layers = {"glm": 2, "glm_groups": 2, "glm_plain": 3}.get(name, 0)
    expect(f"{name}, {folder.name}: {layers} expert biases, in F32", len(biases) == layers and
           all(tensors[bias]["dtype"] == "F32" for bias in biases), biases)


def our_logits(runs):
    """{(model, rounded): logits of each token} of the checkpoints."""
    folders = {}
    for name, run in runs.items():
        for rounded in (False, True):
            folder = folders[name, rounded] = run / f"logits-{rounded}"
            folder.mkdir()
            (folder / "case.json").write_text(json.dumps({
                "checkpoint": str(checkpoint(run)), **({"rounded": True} if rounded else {}),
                "input_shape": [len(INPUT_IDS), len(INPUT_IDS[0])], "input_ids": sum(INPUT_IDS, [])}))
    run = Run([LOGITS, *folders.values()], env={"OMP_NUM_THREADS": "1"}).wait()
    expect("Meshard computes the checkpoints' logits", run.code == 0, run)
    flat = {key: json.loads((folder / "meshard.json").read_text())["logits"] for key, folder in folders.items()}
    width = len(flat["glm", False]) // len(sum(INPUT_IDS, []))
    return {key: [row[i:i + width] for i in range(0, len(row), width)] for key, row in flat.items()}


def transformers(version, jobs):
    packages = SOURCE / ".venv" / f"hf-{version}"
    if not packages.is_dir():
        raise Skip(f"transformers {version} is not installed; tests/interop/setup.sh does it, given a network")
    task = scratch("jobs.json")
    results = task.with_name("results.json")
    task.write_text(json.dumps({"input_ids": INPUT_IDS, "jobs": jobs, "results": results}, default=str))
    run = Run([SOURCE / ".venv/bin/python", "-B", HERE / "export_peer.py", task],
              env={"PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error",
                   "OMP_NUM_THREADS": "1"}).wait()
    if run.code != 0:
        raise AssertionError(f"transformers {version} failed\n{run.text()}")
    text = json.loads(results.read_text())
    expect(f"it is transformers {version}", text["version"] == version, text["version"])
    return text["results"]


def away(theirs, ours):
    """Of each token, the largest difference, relative to the largest logit of all."""
    assert len(theirs) == len(ours) > 0 and all(map(math.isfinite, sum(theirs + ours, [])))
    largest = max(abs(logit) for row in ours for logit in row)
    return [max(abs(a - b) for a, b in zip(x, y, strict=True)) / largest for x, y in zip(theirs, ours)]


def check_loaded(what, name, result, ours, rounds):
    info = {key: value for key, value in result["info"].items() if value}
    asked = {"missing_keys", "unexpected_keys", "mismatched_keys"} <= set(result["info"])
    expect(f"{what}: {MODELS[name][0]}", result["class"] == MODELS[name][0], result["class"])
    expect(f"{what}: no missing, unexpected or mismatched key", asked and not info, result["info"])
    differences = away(result["logits"], ours)
    limit = BF16_TOLERANCE if rounds else FP32_TOLERANCE
    others = sum(difference > limit for difference in differences)
    may = len(differences) * FLIPPED if rounds and "Moe" in result["class"] else 0
    worst = max(difference for difference in differences if difference <= limit or not may)
    expect(f"{what}: the same logits ({worst:.1e}, allowed {limit:.0e}; {others} tokens beyond it)", others <= may,
           differences)


def check_biases(what, run, result):
    """Those of the last step, which the log has, too."""
    logged = [[float(bias) for bias in layer["bias"]] for layer in Metrics(run).steps[-1]["moe"]["layers"]]
    read = [bias for _, bias in sorted(result["biases"].items())]
    expect(f"{what}: the expert bias is the trained one", len(read) == len(logged) and all(map(any, read)) and
           max(abs(a - b) for x, y in zip(read, logged) for a, b in zip(x, y)) < 1e-7, f"{read}\n{logged}")


def held_out_loss(name, saved):
    """Of weights that transformers saved: a step of no length, and the evaluation after it. The config is theirs, too,
    but for what a config.json has no word for."""
    bias = "enabled: false" if name == "glm_plain" else "update_rate: 0"
    moe = f"  moe: {{expert_bias: {{{bias}}}}}" if "Glm" in MODELS[name][0] else ""
    seed, length, batch = (21, 8, 16) if MODELS[name][2] == MOE else (1234, 16, 12)
    config = saved / "run.yaml"
    config.write_text(f"""schema: 1
run: {{seed: {seed}, threads: 1}}
model:
  from_hf: {saved / "config.json"}
{moe}
train: {{steps: 1, global_batch_size: {batch}, micro_batch_size: 1, seq_len: {length}, eval_interval: 1,
         eval_batches: 2}}
optimizer: {{lr: 1.0e-30}}
lr_schedule: {{warmup_steps: 0}}
data: {{type: synthetic}}
""")
    folder = saved / "run"
    again = training(folder, 1, config, options=("--init-from", saved))
    expect(f"{saved.name} of {name}: exit code 0, said once", again.code == 0 and says_once(again, "weights from "),
           again)
    return again, [float(line["eval_loss"]) for line in Metrics(folder).evals]


@case
def exports_are_hugging_face_models():
    """Catches: a tensor left out, too many, misnamed, transposed or of another expert; a field of config.json missing,
    misspelt or with another meaning; a bias rounded to bf16; a file or config of transformers that is not read back."""
    runs = {}
    for name, (_, ranks, config, values) in MODELS.items():
        runs[name] = scratch(name)
        run = training(runs[name], ranks, config, {**TRAINED, **values})
        expect(f"{name}: trains {STEPS} steps", run.code == 0, run)
        for dtype in ("fp32", "bf16"):
            check_dtypes(name, export(runs[name], dtype))
    ours = our_logits(runs)
    for name in runs:
        expect(f"{name}: rounding the weights shows", max(away(ours[name, False], ours[name, True])) > 1e-4)

    for version in VERSIONS:
        jobs, checks = [], []
        for name, run in runs.items():
            saved = run / f"saved-{version}"
            for dtype, load in (("fp32", "float32"), ("bf16", "float32"), ("bf16", "bfloat16")):
                jobs.append({"load": run / dtype, "dtype": load, "save": saved if dtype == "fp32" else None})
                checks.append((f"{name}, {dtype}, as {load} of {version}", name, dtype, load))
        for (what, name, dtype, load), result in zip(checks, transformers(version, jobs), strict=True):
            check_loaded(what, name, result, ours[name, dtype == "bf16"], load == "bfloat16")
            if name in ("glm", "glm_groups"):
                check_biases(what, runs[name], result)
        for name, run in runs.items():
            expected = [float(line["eval_loss"]) for line in Metrics(run).evals]
            again, losses = held_out_loss(name, run / f"saved-{version}")
            same = len(losses) == len(expected) == 1 and abs(losses[0] / expected[0] - 1) <= LOSS_TOLERANCE
            expect(f"{name}, saved by {version}, --init-from: the same held-out loss {losses}", same, expected, again)


@case
def what_no_class_computes_is_refused():
    """Catches: an export that loads and computes something else; a reason left out; a folder left behind."""
    for name, config, values, reasons in (
            ("softmax", MOE, {"model.moe.scoring_func": "softmax"},
             ("Qwen3MoeForCausalLM", "use_qk_norm false", "n_shared_experts 1", "routed_scaling_factor 1.5")),
            ("variants", VARIANTS, {}, ("Qwen3ForCausalLM", "partial_rotary_factor 0.5"))):
        run = scratch(name)
        trained = training(run, 1, config, {**TRAINED, **values})
        out = run / "out"
        refused = meshard("export", checkpoint(run), "--out", out)
        expect(f"{name}: exit code 2", trained.code == 0 and refused.code == 2, trained, refused)
        for reason in reasons:
            expect(f"{name}: it says {reason}, once", says_once(refused, reason), refused)
        left = [path.name for path in run.iterdir() if path.name.startswith("out")]
        expect(f"{name}: nothing is written", not left, left)
    out.mkdir()
    (out / "kept").touch()
    refused = meshard("export", checkpoint(run), "--out", out)
    expect("a folder that is there: exit code 2, untouched",
           refused.code == 2 and [path.name for path in out.iterdir()] == ["kept"], refused)


if __name__ == "__main__":
    main()
