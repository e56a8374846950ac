"""transformers' side of export.py: loads what Meshard exported, as a user of it does, and saves it again.

Called as `export_peer.py JOBS.json`, with a release of transformers on PYTHONPATH. JOBS.json is {"input_ids": rows,
"jobs": [..], "results": file to write}. A job has
  load   folder to load
  dtype  of the weights in memory
  save   folder to save to, or null
Its result has the class, the loading info, the expert biases and the logits, a row per token.
"""
import json
import sys
from pathlib import Path

import torch
import transformers

BIAS = "e_score_correction_bias"


def shown(value):
    return sorted(map(str, value)) if value else []


def run(job, input_ids):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        job["load"], dtype=getattr(torch, job["dtype"]), attn_implementation="eager", output_loading_info=True)
    model.eval()
    if job["save"]:
        model.save_pretrained(job["save"])
    biases = {name: tensor for name, tensor in model.state_dict().items() if name.endswith(BIAS)}
    return {"class": type(model).__name__, "info": {key: shown(value) for key, value in info.items()},
            "biases": {name: tensor.tolist() for name, tensor in biases.items()},
            "logits": model(input_ids).logits.float().flatten(0, 1).tolist()}


def main():
    torch.set_num_threads(1)
    task = json.loads(Path(sys.argv[1]).read_text())
    input_ids = torch.tensor(task["input_ids"])
    with torch.no_grad():
        results = [run(job, input_ids) for job in task["jobs"]]
    Path(task["results"]).write_text(json.dumps({"version": transformers.__version__, "results": results}))


if __name__ == "__main__":
    main()
