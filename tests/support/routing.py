"""Routing files (regression.record_routing, regression.replay_routing) written and read by hand.

A header of 4096 bytes; then, for every sample position and layer with experts, the ids of its tokens as 16-bit id + 1.
"""
import struct

HEADER = 4096


def write_routing(path, choose, samples, moe_layers=2, experts=8, top_k=2, seq_len=8, batch=16):
    """choose(position, token) gives the expert ids of a token, the same in every layer."""
    head = (f"meshard routing 1\nlayers {moe_layers}\nexperts {experts}\ntop_k {top_k}\nseq_len {seq_len}\n"
            f"global_batch_size {batch}\n").encode()
    path.parent.mkdir(parents=True)
    with open(path, "wb") as file:
        file.write(head.ljust(HEADER, b"\0"))
        for position in range(samples):
            ids = [expert + 1 for token in range(seq_len) for expert in choose(position, token)]
            file.write(struct.pack(f"<{len(ids)}H", *ids) * moe_layers)
    return path


def read_routing(path, moe_layers=2, top_k=2, seq_len=8):
    """[position][layer]: the expert ids of all pairs."""
    data, block = path.read_bytes()[HEADER:], seq_len * top_k
    ids = [stored - 1 for (stored,) in struct.iter_unpack("<H", data)]
    blocks = [ids[i:i + block] for i in range(0, len(ids), block)]
    return [blocks[i:i + moe_layers] for i in range(0, len(blocks), moe_layers)]
