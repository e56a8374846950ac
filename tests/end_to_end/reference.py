"""An implementation of the flat layout and of the traffic formulas that shares nothing with the one under test: the
algorithm of lib/sharding/flat_layout.h and the table of strategies, slow and plain on purpose.
"""
import math
import re


def row_size(shape):
    return math.prod(shape[1:])


def align(position, unit):
    return -(-position // unit) * unit


class Layout:
    """Offsets of the tensors of a group in its flat buffer, and the rows that each shard owns."""

    def __init__(self, shapes, shards):
        self.shapes, self.shards = shapes, shards
        self.chunk = math.lcm(*(row_size(shape) for shape in shapes)) if shapes else 1
        self.numel = [math.prod(shape) for shape in shapes]
        self.offsets = [None] * len(shapes)
        self.fragments = sorted((i for i, n in enumerate(self.numel) if n < self.chunk), key=lambda i: -self.numel[i])
        end = self._place_regulars([i for i, n in enumerate(self.numel) if n >= self.chunk])
        for i in self.fragments:
            self.offsets[i] = align(end, row_size(shapes[i]))
            end = self.offsets[i] + self.numel[i]
        self.size = align(end, self.chunk * shards)

    def _place_regulars(self, waiting):
        end = 0
        while waiting:
            first = waiting.pop(0)
            self.offsets[first] = end
            inside = end + self.numel[first]
            rest = self.numel[first] % self.chunk
            gap_end = end = align(inside, self.chunk)
            if rest == 0:
                continue
            for i in waiting:
                other = self.numel[i] % self.chunk
                if other and rest + other <= self.chunk:
                    self.offsets[i] = gap_end - other
                    end = gap_end + self.numel[i] - other
                    gap_end -= other
                    waiting.remove(i)
                    break
            self._fill(inside, gap_end)
        return end

    def _fill(self, begin, end):
        for i in list(self.fragments):
            start = align(begin, row_size(self.shapes[i]))
            if start + self.numel[i] <= end:
                self.offsets[i] = start
                begin = start + self.numel[i]
                self.fragments.remove(i)

    def padding(self):
        return self.size - sum(self.numel)

    def rows_of(self, i):
        """Rows of tensor i on each shard."""
        part = self.size // self.shards
        rows = []
        for shard in range(self.shards):
            begin = max(self.offsets[i], shard * part)
            end = min(self.offsets[i] + self.numel[i], (shard + 1) * part)
            rows.append(max(end - begin, 0) // row_size(self.shapes[i]))
        return rows


def model_of(path):
    """The scalars of a config's model section (Python has no YAML of its own)."""
    values, inside = {}, False
    for line in path.read_text().splitlines():
        if re.match(r"\S", line):
            inside = line.startswith("model:")
        match = re.match(r"  (\w+): *([^#\s]+)", line)
        if inside and match:
            text = match[2]
            values[match[1]] = text == "true" if text in ("true", "false") else number(text)
    return values


def number(text):
    return int(text) if re.fullmatch(r"\d+", text) else float(text)


def llama_units(m):
    """[(unit, [(name, shape)])] of a dense model, in the order of fully_shard: layers, then the rest."""
    heads, width = m["num_attention_heads"], m["hidden_size"]
    head = m.get("head_dim", width // heads)
    q, kv, wide = heads * head, m["num_key_value_heads"] * head, m["intermediate_size"]
    units = []
    for i in range(m["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        tensors = [("self_attn.q_proj", [q, width]), ("self_attn.k_proj", [kv, width]),
                   ("self_attn.v_proj", [kv, width]), ("self_attn.o_proj", [width, q]),
                   ("mlp.gate_proj", [wide, width]), ("mlp.up_proj", [wide, width]), ("mlp.down_proj", [width, wide]),
                   ("input_layernorm", [width]), ("post_attention_layernorm", [width])]
        units.append((prefix[:-1], [(prefix + name + ".weight", shape) for name, shape in tensors]))
    root = [("model.embed_tokens.weight", [m["vocab_size"], width]), ("model.norm.weight", [width])]
    if not m["tie_word_embeddings"]:
        root.append(("lm_head.weight", [m["vocab_size"], width]))
    return units + [("root", root)]


def step_traffic(units, strategy, outer, inner, microbatches, param_bytes, wire_bytes):
    """{op: {axis: {count, bytes}}} that one rank sends in a step. `units`: [(elements of the flat buffer, kept)]."""
    table = {}

    def add(operation, axis, ranks, full_bytes, count):
        if ranks == 1 or count == 0:
            return
        entry = table.setdefault(operation, {}).setdefault(axis, {"count": 0, "bytes": 0})
        factor = 2 if operation == "all_reduce" else 1
        entry["count"] += count
        entry["bytes"] += count * factor * (ranks - 1) * full_bytes // ranks

    for size, kept in units:
        param, wire = size * param_bytes, size * wire_bytes
        gathers = microbatches * (1 if kept else 2)
        if strategy == "ddp":
            add("all_reduce", "dp_shard", inner, wire, 1)
            add("all_reduce", "dp_outer", outer, wire, 1)
        elif strategy in ("zero1", "zero2"):
            add("reduce_scatter", "dp_shard", inner, wire, 1 if strategy == "zero1" else microbatches)
            add("all_reduce", "dp_outer", outer, wire // inner, 1)
            add("all_gather", "dp_shard", inner, param, 1)
        elif strategy == "fsdp":
            axis = "world" if outer > 1 and inner > 1 else "dp_outer" if outer > 1 else "dp_shard"
            add("all_gather", axis, outer * inner, param, gathers)
            add("reduce_scatter", axis, outer * inner, wire, microbatches)
        else:
            add("all_gather", "dp_shard", inner, param, gathers)
            add("reduce_scatter", "dp_shard", inner, wire, microbatches)
            if strategy == "hsdp":
                add("all_reduce", "dp_outer", outer, wire // inner, 1)
            else:
                add("reduce_scatter", "dp_outer", outer, wire // inner, 1)
                add("all_gather", "dp_outer", outer, param // inner, 1)
    return table
