"""PyTorch's side of dcp.py: loads, trains and saves with torch.distributed.checkpoint, as a user of it does.

Called as `dcp_peer.py JOBS.json`. JOBS.json is {"ranks": number of gloo ranks, "tokens": the one sample, "adamw":
hyperparameters, "model": lm.py's config, "jobs": [..], "results": file to write}. A job has
  load    folder to load, or absent: weights of lm.py's own, and 3 steps of training
  layout  plain, fsdp (FSDP2 over all ranks), hsdp (FSDP2 on 2 x the rest)
  model   what of lm.py's config is another for this job
  tied    whether the head is the embedding
  class   lm (lm.py's dense model) or a folder with a config.json of transformers
  with    optimizer (adamw or sgd; default adamw)
  save    folder to save to, before the steps
  crc32   whether archives get their CRC-32; default: yes
  spoilt  {folder: kind}: copies of the saved folder, each with the fault that spoil() makes
  odd     whether the saved folder also gets what PyTorch can write and Meshard does not
  steps   steps to train, their losses are the result
Its result has the losses, and from before these steps: the optimizer's groups, the experts' biases and the numbers of
rows of this rank's pieces. A job with `tensors`, two folders, compares the tensors below `model` instead; one with
`cut`, a folder, lists the tensors that have chunks of parts of rows.
"""
import dataclasses
import json
import pickle
import shutil
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (get_model_state_dict, get_optimizer_state_dict,
                                                     set_model_state_dict, set_optimizer_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

HERE = Path(__file__).resolve().parent
WRONG = {"adamw": {"lr": 0.5, "betas": (0.5, 0.5), "eps": 0.5, "weight_decay": 0.5},  # a load has to overwrite all
         "sgd": {"lr": 0.5, "weight_decay": 0.5}}
ROUNDED = "model.layers.0.mlp.down_proj.weight"
TURNED = ("model.layers.0.mlp.gate_proj.weight", "model.layers.1.self_attn.k_proj.weight")


def build(task, job):
    if job.get("class", "lm") == "lm":
        sys.path[:0] = [str(HERE.parent / "bench/peer")]
        from lm import LM, Config
        return LM(Config(**{**task["model"], **job.get("model", {})}, tie_word_embeddings=job.get("tied", False)))
    import transformers
    config = transformers.AutoConfig.from_pretrained(job["class"])
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()


def shard(model, layout):
    if layout == "plain":
        return
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,) if layout == "fsdp" else (2, ranks // 2),
                            mesh_dim_names=("shard",) if layout == "fsdp" else ("replicate", "shard"))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def make_optimizer(model, kind, values):
    decayed = [p for name, p in model.named_parameters() if p.dim() > 1 and "embed_tokens" not in name]
    others = [p for p in model.parameters() if not any(p is q for q in decayed)]
    make = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[kind]
    return make([{"params": decayed}, {"params": others, "weight_decay": 0.0}], **values)


def step(model, optimizer, tokens):
    ids = torch.tensor([tokens])
    logits = model(ids[:, :-1])
    logits = getattr(logits, "logits", logits)
    loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[0, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def state_of(model, optimizer):
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


def turned(tensor):
    """The same values, stored column by column."""
    return tensor.t().contiguous().t()


def round_to_bf16(model):
    """So that storing them as bf16 loses nothing."""
    parameter = dict(model.named_parameters())[ROUNDED]
    parameter.data.copy_(parameter.data.bfloat16())


def make_odd(state):
    for name in TURNED:
        state["model"][name] = turned(state["model"][name])
        state["optimizer"]["state"][name]["exp_avg"] = turned(state["optimizer"]["state"][name]["exp_avg"])
    state["model"][ROUNDED] = state["model"][ROUNDED].bfloat16()
    state["extra"] = {
        "scalar": torch.tensor(3.5, dtype=torch.float64), "empty": torch.empty(0, 7), "none": torch.empty(0),
        "flags": torch.tensor([True, False]), "half": torch.ones(3, dtype=torch.float16),
        "float8": torch.ones(2, 2).to(torch.float8_e4m3fn), "unsigned": torch.ones(3, dtype=torch.uint16),
        "turned": turned(torch.arange(15).reshape(3, 5)), "view": torch.arange(40.0)[7:29:3],
        "many": {f"{i:04}": torch.tensor([i], dtype=torch.int16) for i in range(1100)},
        "text": "words", "number": 1 << 100, "list": [1, 2.5, None, True, "x"]}


def run_job(task, job):
    kind = job.get("with", "adamw")
    model = build(task, job)
    shard(model, job["layout"])
    optimizer = make_optimizer(model, kind, WRONG[kind] if "load" in job else task["adamw"])
    if "load" in job:
        state = state_of(model, optimizer)
        dcp.load(state, checkpoint_id=job["load"])
        set_model_state_dict(model, state["model"])
        set_optimizer_state_dict(model, optimizer, state["optimizer"])
    else:
        for _ in range(3):
            step(model, optimizer, task["tokens"])
    if job.get("odd"):
        round_to_bf16(model)
    result = facts(model, optimizer)
    if "save" in job:
        state = state_of(model, optimizer)
        if job.get("odd"):
            make_odd(state)
        torch.serialization.set_crc32_options(job.get("crc32", True))
        dcp.save(state, checkpoint_id=job["save"])
        torch.serialization.set_crc32_options(True)
    for folder, kind in job.get("spoilt", {}).items():
        spoil(job["save"], Path(folder), kind)
    return {**result, "losses": [step(model, optimizer, task["tokens"]) for _ in range(job["steps"])]}


SPOILT = "model.model.layers.0.mlp.gate_proj.weight"  # [89, 32]
TWIN = "model.model.layers.0.mlp.up_proj.weight"


def spoil(source, folder, kind):
    """A copy with one fault, as a careless tool or a hostile hand leaves it."""
    shutil.copytree(source, folder)
    index = pickle.loads((folder / ".metadata").read_bytes())
    entry = index.state_dict_metadata[SPOILT]
    place, twin = (next(at for at in index.storage_data if at.fqn == key) for key in (SPOILT, TWIN))
    data = folder / index.storage_data[place].relative_path

    def as_shape(*sizes):
        entry.size = entry.chunks[0].sizes = torch.Size(sizes)

    def put(place, tensor):
        length = data.stat().st_size
        with data.open("ab") as file:
            torch.save(tensor, file)
        index.storage_data[place] = dataclasses.replace(
            index.storage_data[place], offset=length, length=data.stat().st_size - length)

    if kind == "flip":
        info = index.storage_data[place]
        changed = bytearray(data.read_bytes())
        changed[info.offset + info.length // 2] ^= 16
        data.write_bytes(changed)
    elif kind == "shape":
        as_shape(32, 89)
    elif kind == "huge":
        as_shape(10**9, 32)
    elif kind == "dtype":
        entry.properties.dtype = torch.int32
    elif kind == "shared":
        index.storage_data[place] = index.storage_data[twin]
    elif kind == "beyond":
        index.storage_data[place] = dataclasses.replace(index.storage_data[place], offset=10**9)
    elif kind == "expanded":
        put(place, torch.zeros(1).expand(89, 32))
    elif kind == "step":
        put(next(at for at in index.storage_data if at.fqn.endswith(".step")), torch.tensor(float("nan")))
    (folder / ".metadata").write_bytes(pickle.dumps(index))


def facts(model, optimizer):
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    buffers = {name: buffer.tolist() for name, buffer in model.named_buffers() if name.endswith("correction_bias")}
    return {"groups": groups, "biases": buffers,
            "pieces": sorted({p.to_local().shape[0] for p in model.parameters() if hasattr(p, "to_local")})}


def whole(folder):
    """Every tensor below `model` as plain ones."""
    listed = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {key: torch.full(entry.size, float("nan")) for key, entry in listed.items() if key.startswith("model.")}
    dcp.load(tensors, checkpoint_id=folder)
    return tensors


def compare(folders):
    """The keys of unequal tensors."""
    a, b = map(whole, folders)
    return {"keys": [len(a), len(b)], "other": [key for key in a if key not in b or not torch.equal(a[key], b[key])],
            "shapes": {key: list(tensor.shape) for key, tensor in a.items() if ".experts." in key}}


def cut_within_rows(folder):
    """The keys of tensors with chunks that hold parts of rows."""
    listed = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    return [key for key, entry in listed.items()
            if any(list(chunk.sizes[1:]) != list(entry.size[1:]) for chunk in getattr(entry, "chunks", ()))]


def result_of(task, job):
    if "tensors" in job:
        return compare(job["tensors"])
    return cut_within_rows(job["cut"]) if "cut" in job else run_job(task, job)


def main(rank, task, store):
    torch.set_num_threads(1)
    if task["ranks"] > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=task["ranks"],
                                timeout=timedelta(seconds=200))
    results = [result_of(task, job) for job in task["jobs"]]
    if rank == 0:
        Path(task["results"]).write_text(json.dumps(results))
    if task["ranks"] > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    jobs = json.loads(Path(sys.argv[1]).read_text())
    if jobs["ranks"] == 1:
        main(0, jobs, None)
    else:  # forked: the import takes longer than the work
        torch.multiprocessing.start_processes(main, (jobs, f"{sys.argv[1]}.store"), jobs["ranks"], start_method="fork")
