"""Makes tiny random models with the transformers release on PYTHONPATH, and says what they compute.

Called as `hugging_face_models.py FOLDER`. Each of variants_of() that release gets FOLDER/NAME with
  config.json    in the form of transformers 4.x, which 5.x reads too (OF_5: of 5.x, made by that release only)
  all_fields.json  the same config, with every field that the release knows
  case.json      {"input_shape", "input_ids": [..], "tensors": [{"name", "shape", "offset"}]}; names as in safetensors
                 files, with one tensor per expert and projection; offset in elements
  weights.bin    fp32, little-endian
  expected.json  {"logits": [..] (flat), "routing": [{"layer", "ids": [[..]], "weights": [[..]]}]}, a row per token
Values depend on a tensor's name and shape only, so that every release gets the same model.
"""
import json
import re
import sys
import zlib
from pathlib import Path

COMMON = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24, "max_position_embeddings": 64, "rope_theta": 10000.0,
    "hidden_act": "silu", "initializer_range": 0.02, "tie_word_embeddings": False, "attention_bias": False}
GLM = {
    **COMMON, "model_type": "glm4_moe", "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "use_qk_norm": False,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0}
GROUPS = {**GLM, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
QWEN_MOE = {
    **COMMON, "model_type": "qwen3_moe", "rms_norm_eps": 1e-6, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": [0], "norm_topk_prob": True}
LLAMA = {**COMMON, "model_type": "llama", "rms_norm_eps": 1e-6}
QWEN = {**COMMON, "model_type": "qwen3", "rms_norm_eps": 1e-6}

VARIANTS = {
    "glm": GLM,
    "glm_full_rotary": {**GLM, "partial_rotary_factor": 1.0},
    "glm_default_rotary": {key: GLM[key] for key in GLM if key != "partial_rotary_factor"},
    "glm_attention_bias": {**GLM, "attention_bias": True},
    "glm_qk_norm": {**GLM, "use_qk_norm": True, "attention_bias": True},
    "glm_groups": GROUPS,
    "glm_plain_weights": {**GROUPS, "norm_topk_prob": False, "num_experts_per_tok": 4},
    "glm_no_shared": {**GLM, "n_shared_experts": 0, "first_k_dense_replace": 0},
    "glm_two_shared": {**GLM, "n_shared_experts": 2, "routed_scaling_factor": 2.5, "tie_word_embeddings": True},
    "glm_negative_scores": GROUPS,
    "qwen3_moe": QWEN_MOE,
    "qwen3_moe_plain_weights": {**QWEN_MOE, "norm_topk_prob": False, "mlp_only_layers": [], "num_experts_per_tok": 3},
    "qwen3_moe_attention_bias": {**QWEN_MOE, "attention_bias": True, "mlp_only_layers": [0, 1]},
    "llama": LLAMA,
    "llama_attention_bias": {**LLAMA, "attention_bias": True, "rope_theta": 500000.0},
    "llama_tied": {**LLAMA, "tie_word_embeddings": True},
    "qwen3": QWEN,
    "qwen3_attention_bias": {**QWEN, "attention_bias": True},
}
# 5.x writes 0.5 outside of rope_parameters whatever it computes, and computes what they say.
OF_5 = {
    "glm_inner_rotary": {**GLM, "transformers_version": "5.18.0",
                         "rope_parameters": {"rope_type": "default", "rope_theta": 5.0e4, "partial_rotary_factor": 1.0}},
}
STACKED = re.compile(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)")


def variants_of(version):
    """{name: config.json} that the release `version` of transformers makes."""
    return VARIANTS if version.startswith("4.") else {**VARIANTS, **OF_5}


def file_tensors(name, tensor):
    """[(name in a safetensors file, part)] of an entry of a state dict; 5.x stacks the experts of a layer."""
    match = STACKED.fullmatch(name)
    if not match:
        return [(name, tensor)]
    parts = [("gate_proj", "up_proj"), ("down_proj",)][match[2] == "down_proj"]
    return [(f"{match[1]}.{expert}.{part}.weight", rows)
            for expert, matrix in enumerate(tensor)
            for part, rows in zip(parts, matrix.chunk(len(parts)))]


def values(name, shape, variant):
    """Large enough for every part to matter. Norms near 1, as trained ones."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    if name.endswith("e_score_correction_bias"):
        # Scores are in (0, 1): biased ones are positive, or all negative.
        return torch.rand(shape, generator=generator) * 0.4 - (2.0 if variant == "glm_negative_scores" else 0.0)
    normal = torch.randn(shape, generator=generator)
    return 1 + 0.2 * normal if name.endswith("norm.weight") else 0.1 * normal


def routing_of(output, config):
    """(ids, weights) of a router's output."""
    if isinstance(output, tuple):  # GLM of 4.x: ids, weights; 5.x: logits, weights, ids
        return output if len(output) == 2 else (output[2], output[1])
    # Qwen3 of 4.x chooses outside of its router, which gives logits.
    weights, ids = output.softmax(-1, dtype=torch.float).topk(config.num_experts_per_tok, dim=-1)
    return ids, weights / weights.sum(-1, keepdim=True) if config.norm_topk_prob else weights


def make(folder, fields):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=1))
    config = transformers.AutoConfig.from_pretrained(folder)
    (folder / "all_fields.json").write_text(config.to_json_string(use_diff=False))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()

    index, offset = [], 0
    with open(folder / "weights.bin", "wb") as file:
        for name, whole in model.state_dict().items():
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            for part_name, part in file_tensors(name, whole):
                part.copy_(values(part_name, part.shape, folder.name))
                file.write(part.numpy().astype("<f4").tobytes())
                index.append({"name": part_name, "shape": list(part.shape), "offset": offset})
                offset += part.numel()

    routing = []
    for layer, block in enumerate(model.model.layers):
        if hasattr(block.mlp, "gate"):
            block.mlp.gate.register_forward_hook(
                lambda module, inputs, output, layer=layer: routing.append((layer, *routing_of(output, config))))
    ids = torch.randint(0, config.vocab_size, (2, 24), generator=torch.Generator().manual_seed(1))
    logits = model(ids).logits
    (folder / "case.json").write_text(json.dumps({
        "input_shape": list(ids.shape), "input_ids": ids.flatten().tolist(), "tensors": index}))
    (folder / "expected.json").write_text(json.dumps({
        "logits": logits.flatten().tolist(),
        "routing": [{"layer": layer, "ids": chosen.tolist(), "weights": weights.tolist()}
                    for layer, chosen, weights in routing]}))


if __name__ == "__main__":
    import torch
    import transformers
    with torch.no_grad():
        for variant, model_fields in variants_of(transformers.__version__).items():
            make(Path(sys.argv[1]) / variant, model_fields)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
