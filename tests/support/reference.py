"""An implementation of the flat layout, of models' units and of the traffic formulas that shares nothing with the one
under test: the algorithm of lib/sharding/flat_layout.h and the table of strategies, slow and plain on purpose.
"""
import math
import re


def align(position, unit):
    return -(-position // unit) * unit


class Layout:
    """Offsets of the tensors of a group in its flat buffer, and the elements of each that each shard owns."""

    def __init__(self, shapes, shards):
        self.shapes, self.shards = shapes, shards
        self.numel = [math.prod(shape) for shape in shapes]
        self.offsets, end = [], 0
        for count in self.numel:
            self.offsets.append(align(end, 64))
            end = self.offsets[-1] + count
        self.size = align(end, 64 * shards)

    def padding(self):
        return self.size - sum(self.numel)

    def elements_of(self, i):
        """Elements of tensor i on each shard."""
        part = self.size // self.shards
        ends = self.offsets[i], self.offsets[i] + self.numel[i]
        return [max(min(ends[1], (shard + 1) * part) - max(ends[0], shard * part), 0) for shard in range(self.shards)]


def tables_of(path):
    """{section: {key: scalar}} of a config; a section is a tuple of names (Python has no YAML of its own)."""
    tables, keys = {}, []
    for line in path.read_text().splitlines():
        match = re.match(r"( *)(\w+): *([^#\s]*)", line)
        if match:
            keys = keys[:len(match[1]) // 2] + [match[2]]
            tables.setdefault(tuple(keys[:-1]), {})[match[2]] = scalar(match[3])
    return tables


def model_of(path):
    tables = tables_of(path)
    return {**tables["model",], "moe": tables.get(("model", "moe"))}


def scalar(text):
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def attention(m):
    width, head = m["hidden_size"], m.get("head_dim", m["hidden_size"] // m["num_attention_heads"])
    q, kv = m["num_attention_heads"] * head, m["num_key_value_heads"] * head
    tensors = []
    for name, shape in (("q", [q, width]), ("k", [kv, width]), ("v", [kv, width]), ("o", [width, q])):
        tensors.append((f"{name}_proj.weight", shape))
        glm = m["moe"] and m["moe"].get("scoring_func", "sigmoid") == "sigmoid"
        if m.get("attention_bias") and not (name == "o" and glm):
            tensors.append((f"{name}_proj.bias", shape[:1]))
    if m.get("use_qk_norm"):
        tensors += [("q_norm.weight", [head]), ("k_norm.weight", [head])]
    return tensors


def mlp(width, wide):
    return [("gate_proj.weight", [wide, width]), ("up_proj.weight", [wide, width]), ("down_proj.weight", [width, wide])]


def below(prefix, tensors):
    return [(f"{prefix}.{name}", shape) for name, shape in tensors]


def has_experts(m, layer):
    return m["moe"] is not None and layer >= m["moe"].get("first_k_dense_replace", 0)


def moe_layers(m):
    return sum(has_experts(m, layer) for layer in range(m["num_hidden_layers"]))


HEAD = "model.norm+lm_head"


def model_units(m, ep=1):
    """[(unit, mesh, [(name, shape)])] in the order of fully_shard: the embedding; of each layer its routed experts (the
    share of one rank), then what is left of it; last norm and head. A tied model has the first and the last in one."""
    width, moe, tied = m["hidden_size"], m["moe"], m.get("tie_word_embeddings")
    embedding, norm = ("model.embed_tokens.weight", [m["vocab_size"], width]), ("model.norm.weight", [width])
    units = [] if tied else [("model.embed_tokens", "dense", [embedding])]
    for i in range(m["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        tensors = below("self_attn", attention(m))
        if has_experts(m, i):
            local, wide = moe["n_routed_experts"] // ep, moe["moe_intermediate_size"]
            experts = [("gate_up_proj", [local * 2 * wide, width]), ("down_proj", [local * width, wide])]
            unit = f"{layer}.mlp.experts"
            units.append((unit, "expert" if ep > 1 else "dense", below(unit, experts)))
            tensors.append(("mlp.gate.weight", [moe["n_routed_experts"], width]))
            if shared := moe.get("n_shared_experts", 0):
                tensors += below("mlp.shared_experts", mlp(width, shared * wide))
        else:
            tensors += below("mlp", mlp(width, m["intermediate_size"]))
        tensors += [("input_layernorm.weight", [width]), ("post_attention_layernorm.weight", [width])]
        units.append((layer, "dense", below(layer, tensors)))
    if tied:
        return units + [("root", "dense", [embedding, norm])]
    return units + [(HEAD, "dense", [norm, ("lm_head.weight", [m["vocab_size"], width])])]


def parameters(m):
    """Of the whole model, and those that a token meets."""
    total = active = 0
    for name, _, tensors in model_units(m):
        count = sum(math.prod(shape) for _, shape in tensors)
        total += count
        routed = name.endswith(".mlp.experts")
        active += count // m["moe"]["n_routed_experts"] * m["moe"].get("num_experts_per_tok", 2) if routed else count
    return {"total": total, "active": active}


def unit_layouts(m, ranks, ep=1):
    """[(unit, mesh, tensors, Layout)]: routed experts over the ranks that hold the same ones, all else over all."""
    return [(name, mesh, tensors, Layout([shape for _, shape in tensors], ranks // ep if mesh == "expert" else ranks))
            for name, mesh, tensors in model_units(m, ep)]


def buffers(m, ranks, ep=1):
    """[(elements of the unit's flat buffer, mesh, whether a microbatch gathers it once)]: what step_traffic takes."""
    once = ("root", "model.embed_tokens", HEAD)
    return [(layout.size, mesh, name in once) for name, mesh, _, layout in unit_layouts(m, ranks, ep)]


class Table:
    """What one rank sends in a step: {op: {axis: {count, bytes}}}."""

    def __init__(self):
        self.rows = {}

    def add(self, operation, axis, ranks, full_bytes, count):
        if ranks == 1 or count == 0:
            return
        entry = self.rows.setdefault(operation, {}).setdefault(axis, {"count": 0, "bytes": 0})
        factor = 2 if operation == "all_reduce" else 1
        entry["count"] += count
        entry["bytes"] += count * (factor * (ranks - 1) * full_bytes // ranks)


def step_traffic(units, strategy, outer, inner, microbatches, param_bytes, wire_bytes, ep=1):
    table = Table()
    dense, experts = (("dp_outer", outer), ("dp_shard", inner)), (("", 1), ("expert_dp", outer * inner // ep))
    for size, mesh, kept in units:
        one_dimensional = mesh == "expert" and strategy in ("hsdp", "hfsdp")
        unit_traffic(table, "fsdp" if one_dimensional else strategy, experts if mesh == "expert" else dense,
                     size * param_bytes, size * wire_bytes, microbatches, microbatches * (1 if kept else 2))
    return table.rows


def unit_traffic(table, strategy, axes, param, wire, microbatches, gathers):
    (outer_name, outer), (inner_name, inner) = axes
    if strategy == "ddp":
        table.add("all_reduce", inner_name, inner, wire, 1)
        table.add("all_reduce", outer_name, outer, wire, 1)
    elif strategy in ("zero1", "zero2"):
        table.add("reduce_scatter", inner_name, inner, wire, 1 if strategy == "zero1" else microbatches)
        table.add("all_reduce", outer_name, outer, wire // inner, 1)
        table.add("all_gather", inner_name, inner, param, 1)
    elif strategy == "fsdp":
        axis = "world" if outer > 1 and inner > 1 else outer_name if outer > 1 else inner_name
        table.add("all_gather", axis, outer * inner, param, gathers)
        table.add("reduce_scatter", axis, outer * inner, wire, microbatches)
    else:
        table.add("all_gather", inner_name, inner, param, gathers)
        table.add("reduce_scatter", inner_name, inner, wire, microbatches)
        if strategy == "hsdp":
            table.add("all_reduce", outer_name, outer, wire // inner, 1)
        else:
            table.add("reduce_scatter", outer_name, outer, wire // inner, 1)
            table.add("all_gather", outer_name, outer, param // inner, 1)


def routing_traffic(m, ranks, ep, microbatches, tokens, row_bytes, recompute):
    """What routing adds, if each expert gets as many of a microbatch's `tokens` as any other."""
    table, layers, count_bytes = Table(), moe_layers(m), m["moe"]["n_routed_experts"] * 8
    table.add("all_reduce", "world", ranks, layers * count_bytes, 1)
    table.add("all_to_all", "expert", ep, count_bytes, layers * microbatches)
    rows = tokens * m["moe"].get("num_experts_per_tok", 2)
    table.add("all_to_all_v", "expert", ep, rows * row_bytes, layers * microbatches * (6 if recompute else 4))
    return table.rows


def merged(*tables):
    """Tables of step_traffic and routing_traffic: no row is in two of them."""
    result = {}
    for table in tables:
        for operation, axes in table.items():
            assert not axes.keys() & result.get(operation, {}).keys()
            result.setdefault(operation, {}).update(axes)
    return result
