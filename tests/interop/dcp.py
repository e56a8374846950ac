"""Checkpoints go between Meshard and PyTorch's torch.distributed.checkpoint, in both directions and on any number of
ranks of either: the run goes on with the same losses as on the side that saved, to 2e-5.

Called as `dcp.py SOURCE_FOLDER PROGRAM [CASE...]`; PROGRAM is meshard. Needs what setup.sh installs. Every batch is the
one sample of a corpus, so that both sides train on the same data.
"""
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]
from harness import (SOURCE, TINY, Metrics, Run, Skip, case, expect, main, meshard, says_once,
                     scratch, sets, training, worst_difference)

TOLERANCE = 2e-5
MOE = "configs/tests/moe.yaml"
SAMPLE = b"to be or not to be"  # one window of 16 + 1 tokens
SEQ_LEN = 16
ADAMW = {"lr": 2e-3, "betas": [0.85, 0.98], "eps": 1e-7, "weight_decay": 0.2}
# Neither 261 nor 89 is even: FSDP2 and Meshard cut rows at different places, and nowhere equally.
MODEL = {"vocab_size": 261, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 89, "max_position_embeddings": SEQ_LEN}
GLM = {
    "model_type": "glm4_moe", "vocab_size": 260, "hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 16,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0, "attention_bias": False,
    "use_qk_norm": False, "tie_word_embeddings": False, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": True, "routed_scaling_factor": 1.5, "output_router_logits": False}


def settings(**more):
    corpus = scratch("corpus.txt")
    corpus.write_bytes(SAMPLE)
    return {"data.type": "text", "data.files": f"[{corpus}]", "data.validation_fraction": 0, "train.eval_interval": 0,
            "train.max_grad_norm": 0, "train.seq_len": SEQ_LEN, "lr_schedule.type": "constant",
            "lr_schedule.warmup_steps": 0, "lr_schedule.min_lr": 0, "checkpoint.interval": 3, "train.steps": 6,
            **{f"optimizer.{key}": value for key, value in ADAMW.items()},
            **{key.replace("__", "."): value for key, value in more.items()}}


def dense(**more):
    return settings(**{**{f"model__{key}": value for key, value in MODEL.items()}, **more})


HSDP = {"parallel__strategy": "hsdp", "parallel__dp_outer": 2}


def meshard_run(what, ranks, values, config=TINY, options=()):
    """(folder of the run, losses of its steps)."""
    folder = scratch("run")
    run = training(folder, ranks, config, values, options)
    expect(f"Meshard {what} on {ranks} ranks", run.code == 0, run)
    return folder, Metrics(folder).numbers("loss")


def checkpoint(folder, step):
    return folder / "checkpoints" / f"step-{step:08}"


def python(*jobs, ranks=1, packages=None):
    """Results of jobs of dcp_peer.py on gloo ranks."""
    interpreter = SOURCE / ".venv/bin/python"
    if not interpreter.exists():
        raise Skip("no Python with torch; tests/interop/setup.sh installs it, given a network")
    task = scratch("jobs.json")
    results = task.with_name("results.json")
    task.write_text(json.dumps({"ranks": ranks, "tokens": list(SAMPLE[:SEQ_LEN + 1]), "adamw": ADAMW, "model": MODEL,
                                "jobs": jobs, "results": results}, default=str))
    env = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **({"PYTHONPATH": str(packages)} if packages else {})}
    run = Run([interpreter, "-B", HERE / "dcp_peer.py", task], env=env).wait(300)
    if run.code != 0:
        raise AssertionError(f"PyTorch's side failed\n{run.text()}")
    return json.loads(results.read_text())


def same_losses(what, ours, theirs, count=3):
    worst = worst_difference(ours, theirs)
    return expect(f"{what}: {count} steps with the same losses (worst {worst:.1e}, allowed {TOLERANCE:.0e})",
                  len(ours) == count and worst <= TOLERANCE, f"Meshard {ours}\nPython  {theirs}")


def check_groups(what, groups, expected):
    """The hyperparameters that the optimizer has after the load: Meshard's, and the two groups of its decay."""
    right = [group["weight_decay"] for group in groups] == [ADAMW["weight_decay"], 0.0]
    right = right and all(group[key] == value for group in groups for key, value in expected.items())
    expect(f"{what}: the optimizer's groups have Meshard's hyperparameters", right, groups)


@case
def python_goes_on():
    """Catches: a file or a .metadata that PyTorch does not read, a key, shape or group that its strict load misses,
    rows at a wrong place, a moment or step count of another parameter, hyperparameters that are not the run's."""
    fsdp, fsdp_losses = meshard_run("trains", 2, dense())
    tied, tied_losses = meshard_run("trains, tied", 4, dense(model__tie_word_embeddings="true", **HSDP))
    sgd, sgd_losses = meshard_run("trains with SGD", 1, dense(optimizer__type="sgd"))
    jobs = [{"load": checkpoint(fsdp, 3), "steps": 3},
            {"load": checkpoint(tied, 3), "steps": 3, "tied": True}]
    plain = python(*({**job, "layout": "plain"} for job in jobs),
                   {"load": checkpoint(sgd, 3), "steps": 3, "layout": "plain", "with": "sgd"})
    sharded = python(*({**job, "layout": "fsdp"} for job in jobs), ranks=2)
    for name, results in (("plain modules", plain), ("FSDP2 on 2 ranks", sharded)):
        for mesh, losses, result in (("FSDP on 2 ranks", fsdp_losses, results[0]),
                                     ("HSDP on 2 x 2, tied", tied_losses, results[1])):
            same_losses(f"{mesh} to {name}", losses[3:], result["losses"])
            check_groups(f"{mesh} to {name}", result["groups"], {key: ADAMW[key] for key in ("lr", "betas", "eps")})
    same_losses("SGD to plain modules", sgd_losses[3:], plain[2]["losses"])
    check_groups("SGD to plain modules", plain[2]["groups"], {"lr": ADAMW["lr"], "momentum": 0, "nesterov": False})


@case
def rows_are_cut():
    """Catches: a chunk that begins or ends within a row and lands elsewhere, that PyTorch's planner refuses, or that is
    lost when PyTorch writes the checkpoint back; a moment cut elsewhere than its weight."""
    ours, losses = meshard_run("trains with rows of 40", 3, dense(model__hidden_size=40))
    back, model = scratch("back"), {"hidden_size": 40}
    cut, plain, compared = python(
        {"cut": checkpoint(ours, 3)},
        {"load": checkpoint(ours, 3), "layout": "plain", "model": model, "save": back, "steps": 3},
        {"tensors": [checkpoint(ours, 3), back]})
    sharded, = python({"load": checkpoint(ours, 3), "layout": "fsdp", "model": model, "steps": 3}, ranks=2)
    expect("weights and moments have chunks of parts of rows",
           any(key.startswith("model.") for key in cut) and any(key.endswith(".exp_avg_sq") for key in cut), cut)
    same_losses("rows cut on 3 ranks to plain modules", losses[3:], plain["losses"])
    same_losses("rows cut on 3 ranks to FSDP2 on 2 ranks", losses[3:], sharded["losses"])
    expect("what PyTorch wrote back is equal to the bit", not compared["other"] and compared["keys"][0] > 20, compared)
    for ranks in (3, 2):
        goes_on_from(back, losses[3:], f"PyTorch's copy of {ranks}", ranks, model__hidden_size=40)


def goes_on_from(saved, theirs, what, ranks, **more):
    """Meshard goes on from PyTorch's folder as PyTorch itself did."""
    folder, losses = meshard_run(f"goes on from {what}", ranks, dense(**more), options=("--resume", saved))
    same_losses(f"{what} to Meshard on {ranks} ranks", losses, theirs[:3])
    lines = [line["step"] for line in Metrics(folder).steps]
    expect(f"{what}: the next step is 4", lines == [4, 5, 6], lines)
    return folder


@case
def meshard_goes_on():
    """Catches: an opcode, class or chunk of PyTorch's writers that the reader does not know, empty shards, chunks cut
    elsewhere than ours, a transposed or bf16 tensor read as if it were not, a lost moment or step count."""
    one, two, four = (scratch(name) for name in ("one", "two", "four"))
    (odd, tied), (uneven,), (hybrid,) = (
        python({"save": one, "layout": "plain", "odd": True, "steps": 3},
               {"save": one.with_name("tied"), "layout": "plain", "tied": True, "steps": 3}),
        python({"save": two, "layout": "fsdp", "steps": 6}, ranks=2),
        python({"save": four, "layout": "hsdp", "steps": 3}, ranks=4))
    expect("PyTorch's shards are uneven", {45, 131} <= set(uneven["pieces"]), uneven["pieces"])
    goes_on_from(one, odd["losses"], "1 rank, with odd tensors", 2)
    goes_on_from(one.with_name("tied"), tied["losses"], "1 rank, tied", 1, model__tie_word_embeddings="true")
    goes_on_from(four, hybrid["losses"], "HSDP on 2 x 2", 3)
    back = goes_on_from(two, uneven["losses"], "FSDP2 on 2 ranks", 4, **HSDP)

    _, fresh = meshard_run("starts from PyTorch's weights", 2, dense(train__steps=3), options=("--init-from", two))
    # The weights alone: the first loss is the same, later ones are not, for the moments begin at 0.
    away = worst_difference(fresh[:1], uneven["losses"][:1]), worst_difference(fresh[2:], uneven["losses"][2:3])
    expect(f"weights only: the first loss is the same, the third is not ({away[0]:.1e}, {away[1]:.1e})",
           away[0] <= TOLERANCE < away[1] / 10)

    again, = python({"load": checkpoint(back, 6), "layout": "plain", "steps": 3})
    same_losses("PyTorch to Meshard and back", uneven["losses"][3:], again["losses"])


@case
def experts():
    """Catches: experts in another order or layout than transformers', an expert that two ranks share put together
    wrongly, a correction bias that is not the one trained with."""
    packages = SOURCE / ".venv/hf-5.18.0"
    if not packages.is_dir():
        raise Skip("transformers 5.18.0 is not installed; tests/interop/setup.sh does it, given a network")
    values = settings(**{"model__moe__aux_loss__type": "none", "model__moe__aux_loss__coeff": 0,
                         "model__moe__z_loss_coeff": 0, "train__global_batch_size": 12, "checkpoint__interval": 1,
                         "checkpoint__keep_last": 10})
    first, _ = meshard_run("trains experts", 1, {**values, "train.steps": 3}, MOE)
    start = ("--resume", checkpoint(first, 3))
    # From here on the bias stays: transformers does not train it.
    values["model.moe.expert_bias.update_rate"] = 0
    apart, apart_losses = meshard_run("goes on with expert 2", 4, {**values, "parallel.expert": 2}, MOE, start)
    split, split_losses = meshard_run("goes on with experts over", 3, values, MOE, start)
    still = {**values, "train.steps": 1, "optimizer.lr": 1e-30}
    whole, _ = meshard_run("writes the same weights", 1, still, MOE, ("--init-from", checkpoint(apart, 4)))

    config = scratch("glm") / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(GLM))
    jobs = [{"load": checkpoint(folder, 4), "class": config.parent, "layout": "plain", "steps": 2}
            for folder in (apart, split)]
    *results, equal = python(*jobs, {"tensors": [checkpoint(apart, 4), checkpoint(whole, 1)]}, packages=packages)
    for what, folder, losses, result in (("expert 2 on 4 ranks", apart, apart_losses, results[0]),
                                         ("8 experts over 3 ranks", split, split_losses, results[1])):
        same_losses(f"{what} to transformers", losses[1:], result["losses"], 2)
        logged = [[float(bias) for bias in layer["bias"]] for layer in Metrics(folder).steps[0]["moe"]["layers"]]
        read = [bias for _, bias in sorted(result["biases"].items())]
        expect(f"{what}: the bias is the one logged, and not 0", worst_difference(sum(read, []), sum(logged, [])) < 1e-7
               and len(read) == 2 and all(map(any, read)), f"{read}\n{logged}")
    expect("weights of 4 ranks and of 1 are equal to the bit", not equal["other"] and equal["keys"][0] > 30
           and equal["keys"][0] == equal["keys"][1], equal)
    shapes = {name.split(".")[-1]: shape for name, shape in equal["shapes"].items()}
    expect("experts are [E, 2F, H] and [E, H, F]", shapes == {"gate_up_proj": [8, 48, 32], "down_proj": [8, 32, 24]},
           shapes)


@case
def damage():
    """Catches: data of PyTorch's whose CRC-32 nobody compared, items that are not what the index says, or that it puts
    together of the same bytes; data without a CRC-32 taken for damaged, or for checked."""
    kinds = {"flip": r": its \S*/data/0 is damaged: checksum",
             "shape": r": the item is \[89, 32\] of Float, .metadata says \[32, 89\] of Float",
             "dtype": r": the item is \[89, 32\] of Float, .metadata says \[89, 32\] of Int",
             "shared": r": it begins at byte \d+, before model\.\S+ ends",
             "beyond": r": (it ends beyond its file|bytes \d+ to)",
             "expanded": r": its 2848 elements share a storage of 4 bytes",
             "huge": r": the item is \[89, 32\] of Float, .metadata says \[1000000000, 32\] of Float",
             "step": r"\.step of \S+: it is nan: no count of steps"}
    good = scratch("good")
    spoilt = {kind: good.with_name(kind) for kind in kinds}
    unsummed = good.with_name("unsummed")
    python({"save": good, "layout": "plain", "steps": 0, "spoilt": {str(into): kind for kind, into in spoilt.items()}},
           {"save": unsummed, "layout": "plain", "steps": 0, "crc32": False})
    expect_checked = "against the CRC-32 of their archives (PyTorch wrote no other checksum); shapes and dtypes; every"
    run = meshard("inspect", good, "--verify")
    expect("what PyTorch wrote is checked, and it says how", run.code == 0 and expect_checked in run.out, run)
    for kind, pattern in kinds.items():
        run = meshard("inspect", spoilt[kind], "--verify")
        expect(f"{kind}, inspect --verify: exit code 3, by name", run.code == 3 and re.search(pattern, run.err), run)
    run = meshard("inspect", unsummed, "--verify")
    expect("without CRC-32: whole, and not checked", run.code == 0 and "\nchecked: shapes" in run.out
           and "\nNOT checked: the data of " in run.out, run)
    folder = scratch("run")
    run = training(folder, 2, TINY, dense(train__steps=4), ("--resume", unsummed))
    expect("without CRC-32: loaded, and said", run.code == 0 and says_once(run, "items could not be checked"), run)
    config, sizes = folder / "config.yaml", {f"model.{key}": value for key, value in MODEL.items()}
    for kind in ("flip", "shared", "step"):
        run = training(scratch("next"), 2, TINY, dense(), ("--resume", spoilt[kind]))
        expect(f"{kind}, --resume: exit code 70, said once", run.code == 70 and says_once(run, kinds[kind]), run)
    bad, pattern = spoilt["flip"], kinds["flip"]
    for what, words in (("eval", ("eval", bad, "--config", TINY, *sets(sizes))),
                        ("export", ("export", bad, "--out", scratch("out"), "--config", config)),
                        ("compare", ("compare", good, bad, "--checkpoints"))):
        run = meshard(*words)
        expect(f"flip, {what}: exit code 70, by name", run.code == 70 and re.search(pattern, run.err), run)


if __name__ == "__main__":
    main()
