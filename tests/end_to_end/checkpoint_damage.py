#!/usr/bin/env python3
"""Checkpoints that are damaged: each is told by name, and the one before it is good."""
import json
import os
import pickle
import re
import shutil
import struct
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
from harness import BINARY, Metrics, Run, case, expect, main, meshard, says_once, scratch, training
from saved import AUTO, CONSTANT, checkpoint, convert, data_of, steps_saved

VALUES = {**CONSTANT, "train.steps": 2, "checkpoint.interval": 1}
FILE = "__1_0.distcp"


def crc32c(data):
    """Bit by bit: for the few bytes of a .metadata file."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def write_ours(folder, ours):
    """meshard.json anew, with the checksum that a hostile hand would give it."""
    ours.pop("crc32c", None)
    text = json.dumps(ours, separators=(",", ":"), ensure_ascii=False)
    ours["crc32c"] = crc32c(text.encode())
    (folder / "meshard.json").write_text(json.dumps(ours, separators=(",", ":"), ensure_ascii=False))


def edit(path, change):
    path.write_bytes(change(path.read_bytes()))


def edit_index(folder, old, new):
    """Changes .metadata so that its checksum holds."""
    text = (folder / ".metadata").read_bytes()
    assert old in text, old
    text = text.replace(old, new)
    (folder / ".metadata").write_bytes(text)
    ours = json.loads((folder / "meshard.json").read_text())
    ours["metadata_crc32c"] = crc32c(text)
    write_ours(folder, ours)


def items(folder):
    """[offset, length, checksum] of the items of FILE."""
    return json.loads((folder / "meshard.json").read_text())["items"][FILE]


def flip(path, place):
    edit(path, lambda data: data[:place] + bytes([data[place] ^ 4]) + data[place + 1:])


def flip_in_values(folder):
    offset, length, _ = max(items(folder), key=lambda item: item[1])
    flip(folder / FILE, offset + length // 2)


def flip_in_position(folder):
    field = b'"samples":'
    flip(folder / "meshard.json", (folder / "meshard.json").read_bytes().index(field) + len(field))


def beyond_the_file(folder):
    offset = items(folder)[-1][0]
    edit_index(folder, b"J" + struct.pack("<i", offset), b"J" + struct.pack("<i", 0x7FFFFF00))
    edit(folder / "meshard.json", lambda text: text.replace(b"[%d," % offset, b"[%d," % 0x7FFFFF00))
    write_ours(folder, json.loads((folder / "meshard.json").read_text()))


class Hostile:
    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return os.system, (f"touch {self.witness}",)


WITNESS = "hostile-was-here"


def hostile(folder):
    (folder / "meshard.json").unlink()
    (folder / ".metadata").write_bytes(pickle.dumps(Hostile(folder.parent / WITNESS), 2))


def without_a_row(folder):
    ours = json.loads((folder / "meshard.json").read_text())
    ours["items"][FILE].pop()
    write_ours(folder, ours)


def half(data):
    return data[:len(data) // 2]


def leads_nowhere(folder):
    (folder / "meshard.json").unlink()
    (folder / "meshard.json").symlink_to("nowhere")


def half_of_the_index(folder):
    (folder / "meshard.json").unlink()
    edit(folder / ".metadata", half)


def is_copy(folder, original):
    """The same data and config but for the run's folder, and an index that is whole. It names its folder, so that it
    is not the same one."""
    try:
        ours, theirs = (json.loads((which / "meshard.json").read_text()) for which in (folder, original))
        index = (folder / ".metadata").read_bytes()
    except (OSError, ValueError):
        return False
    for facts in (ours, theirs):
        facts["config"] = re.sub(r"(?m)^  (name|dir): .*\n", "", facts["config"])
    same = all(ours[key] == theirs[key] for key in ("items", "step", "samples", "config"))
    same = same and FILE.encode() in index and ours["metadata_crc32c"] == crc32c(index)
    return same and data_of(folder) == data_of(original)


ITEM = rf"(model|optimizer)\.[\w.]+ of \S*{re.escape(FILE)}"
OUTSIDE = r"\.metadata: (model|optimizer)\.\S+: its data are said to lie in a file that is not one of the"
DAMAGE = (   # what, how, what must be said
    ("a missing file", lambda folder: (folder / FILE).unlink(), rf"cannot open \S*{re.escape(FILE)}: No such file"),
    ("half a file", lambda folder: edit(folder / FILE, half), ITEM),
    ("an empty file", lambda folder: edit(folder / FILE, lambda data: b""), ITEM),
    ("a flipped bit among the values", flip_in_values, ITEM + r": checksum"),
    ("a flipped bit in an item's head", lambda folder: flip(folder / FILE, items(folder)[0][0] + 40),
     ITEM + r": checksum"),
    ("half of .metadata", lambda folder: edit(folder / ".metadata", half), r"\.metadata is damaged: its checksum"),
    ("a flipped bit in .metadata", lambda folder: flip(folder / ".metadata", 2000),
     r"\.metadata is damaged: its checksum"),
    ("half of .metadata, no meshard.json", half_of_the_index, r"\.metadata"),
    ("a .metadata that would run a command", hostile, r"\.metadata[^\n]*system"),
    ("half of meshard.json", lambda folder: edit(folder / "meshard.json", half), r"meshard\.json is damaged"),
    ("an empty meshard.json", lambda folder: edit(folder / "meshard.json", lambda data: b""),
     r"meshard\.json is damaged"),
    ("a meshard.json that leads nowhere", leads_nowhere, r"cannot open \S*meshard\.json: No such file"),
    ("a meshard.json nested 100,000 deep", lambda folder: (folder / "meshard.json").write_bytes(b"[" * 100000),
     r"meshard\.json is damaged: line 1, column 65: nested more than 64 deep"),
    ("a flipped bit in the data position", flip_in_position, r"meshard\.json is damaged"),
    ("a meshard.json without an item", without_a_row, ITEM),
    ("an item beyond the end of its file", beyond_the_file, ITEM),
    ("an absolute path", lambda folder: edit_index(folder, FILE.encode(), b"/etc/host.co"), OUTSIDE),
    ("a path to the folder above", lambda folder: edit_index(folder, FILE.encode(), b"../b.partial"), OUTSIDE),
)


@case
def damage():
    """Catches: damage that is loaded, or not told by name, or told by every rank and for every item; a damaged newest
    checkpoint that hides the good one before it, or is in the way of the one that the run then saves."""
    good = scratch("good")
    run = training(good, 2, values=VALUES)
    expect("two steps: exit code 0", run.code == 0 and steps_saved(good) == [1, 2], run)
    for what, harm, pattern in DAMAGE:
        folder = scratch("run")
        shutil.copytree(good, folder)
        harm(checkpoint(folder, 2))
        run = meshard("inspect", checkpoint(folder, 2), "--verify")
        expect(f"{what}, inspect --verify: exit code 3, by name", run.code == 3 and re.search(pattern, run.err), run)
        elsewhere = scratch("elsewhere")
        run = convert(checkpoint(folder, 2), elsewhere, 2, "configs/tests/tiny.yaml", {})
        expect(f"{what}, --resume DIR: exit code 70", run.code == 70, run)
        expect(f"{what}, --resume DIR: said once", says_once(run, "cannot be loaded") and re.search(pattern, run.err),
               run)
        lines = [line for line in run.err.splitlines() if str(folder) in line]
        expect(f"{what}, --resume DIR: in a few lines, none of them twice", len(set(lines)) == len(lines) <= 41, run)
        expect(f"{what}, --resume DIR: nothing was trained", not Metrics(elsewhere).steps, run)
        run = training(folder, 2, values=VALUES, options=AUTO)
        expect(f"{what}, --resume auto: exit code 0", run.code == 0, run)
        expect(f"{what}, --resume auto: goes on from step 1", says_once(run, "resuming after step 1 from"), run)
        expect(f"{what}, --resume auto: says once why", says_once(run, "2 is damaged") and re.search(pattern, run.out),
               run)
        again = is_copy(checkpoint(folder, 2), checkpoint(good, 2)) and steps_saved(folder) == [1, 2]
        expect(f"{what}, --resume auto: step 2 is saved again", again, run)
        expect(f"{what}: nothing was executed", not list(folder.rglob(WITNESS)), run)


@case
def none_that_is_whole():
    """Catches: a run that starts anew although there are checkpoints, all damaged; a partial one that is loaded."""
    folder = scratch("run")
    run = training(folder, 2, values=VALUES)
    for step in (1, 2):
        edit(checkpoint(folder, step) / FILE, half)
    run = training(folder, 2, values=VALUES, options=AUTO)
    expect("all are damaged: exit code 70, with the way out", run.code == 70 and says_once(run, "--overwrite"), run)
    expect("all are damaged: both are named", all(f"step-0000000{step} is damaged" in run.err for step in (1, 2)), run)

    folder = scratch("run")
    run = training(folder, 2, values=VALUES)
    partial = checkpoint(folder, 2).with_suffix(".partial")
    checkpoint(folder, 2).rename(partial)
    run = training(scratch("elsewhere"), 2, values=VALUES, options=("--resume", partial))
    expect("--resume of a .partial folder: exit code 2, as of any path that is no checkpoint", run.code == 2, run)
    expect("--resume of a .partial folder: said once, by name", says_once(run, re.escape(str(partial)) + " is"), run)
    run = training(folder, 2, values=VALUES, options=AUTO)
    expect("--resume auto: from the whole one", run.code == 0 and says_once(run, "resuming after step 1 from"), run)
    expect("--resume auto: the partial one is gone", not partial.exists() and steps_saved(folder) == [1, 2], run)


def with_fact(folder, **facts):
    write_ours(folder, {**json.loads((folder / "meshard.json").read_text()), **facts})


@case
def facts_that_cannot_be():
    """Catches: a step, a data position or a config that nobody could have saved, taken as it stands or told without its
    file; once per rank; by a load that --verify had called sound."""
    folder = scratch("run")
    training(folder, 2, values=VALUES)
    for facts, said in (({"step": 1}, "says step 1, but its optimizer has done 2 steps"),
                        ({"step": 3.7}, "`step` is 3.7"), ({"step": -5}, "`step` is -5"),
                        ({"samples": -7}, "`samples` is -7"), ({"ranks": 0}, "`ranks` is 0"),
                        ({"ranks": 10**12}, "`ranks` is 1000000000000"), ({"config": 7}, "`config` is 7"),
                        ({"config": "schema: 1"}, "the config in"), ({"tokens": -1}, "`tokens` is -1"),
                        ({"samples": 1}, "`samples` is 1; expected at least the `step`"),
                        ({"format": 4294967297}, "format 4294967297"), ({"format": -1}, "format -1"),
                        ({"data": 7}, "its record of the data"),
                        ({"data": {"training_samples": -1, "held_out_samples": 0, "files": []}}, "a negative count"),
                        ({"data": {"training_samples": 1, "held_out_samples": 0, "files": [{"name": 3}]}},
                         "its record of the data"),
                        ({"data": {"training_samples": 1, "held_out_samples": 0,
                                   "files": [{"name": "a", "bytes": 1, "tokens": 1, "fingerprint": "0x12"}]}},
                         "the fingerprint `0x12`; expected 16 hex digits")):
        bad = scratch("bad")
        shutil.copytree(checkpoint(folder, 2), bad)
        with_fact(bad, **facts)
        run = meshard("inspect", bad, "--verify")
        expect(f"{facts}: inspect --verify: exit code 3, by name", run.code == 3 and said in run.err, run)
        run = training(scratch("next"), 2, values={**VALUES, "train.steps": 3}, options=("--resume", str(bad)))
        expect(f"{facts}: refused, said once", run.code == 70 and says_once(run, re.escape(said)), run)

    # As an earlier version wrote it: there is nothing to compare the data with.
    earlier = scratch("earlier")
    shutil.copytree(checkpoint(folder, 2), earlier)
    ours = json.loads((earlier / "meshard.json").read_text())
    expect("the data are recorded", ours.pop("data", None) and ours["tokens"] == 2 * 12 * 16, ours)
    write_ours(earlier, ours)
    run = training(scratch("next"), 2, values={**VALUES, "train.steps": 3}, options=("--resume", str(earlier)))
    expect("without a record of the data: exit code 0, said once",
           run.code == 0 and says_once(run, "of an earlier version, has no record of its data"), run)

    with_fact(checkpoint(folder, 2), tokens=-1)
    run = training(folder, 2, values=VALUES, options=AUTO)
    expect("--resume auto passes it over, and says so",
           run.code == 0 and says_once(run, "2 is damaged") and says_once(run, "resuming after step 1"), run)


def with_little_memory(*words):
    limited = 'ulimit -v 6000000; exec "$@"'
    return Run(["bash", "-c", limited, "-", BINARY, *words]).wait(60)


@case
def a_model_beyond_all_memory():
    """Catches: memory asked for before the model of a config is compared with what is there to load."""
    folder = scratch("run")
    run = training(folder, 1, values=VALUES)
    good, bad = checkpoint(folder, 2), scratch("bad")
    shutil.copytree(good, bad)
    config = json.loads((bad / "meshard.json").read_text())["config"]
    vocabulary = re.search(r"vocab_size: (\d+)", config)[1]
    with_fact(bad, config=config.replace(f"vocab_size: {vocabulary}", "vocab_size: 999999999"))
    shape = rf"embed_tokens\.weight: \[{vocabulary}, \d+\] in the checkpoint, \[999999999, \d+\] wanted"
    key = rf"model\.vocab_size: {vocabulary} in the checkpoint, 999999999 now"
    config = folder / "config.yaml"
    huge = ("--set", "model.vocab_size=999999999")
    weights = scratch("weights")
    run = meshard("export", good, "--out", weights)
    expect("a Hugging Face folder of it", run.code == 0, run)
    for what, words, code, pattern in (
            ("eval", ("eval", bad), 70, shape),
            ("export", ("export", bad, "--out", scratch("out")), 70, shape),
            ("inspect --verify", ("inspect", bad, "--verify"), 3, shape),
            ("eval of another's", ("eval", good, "--config", config, *huge), 2, key),
            ("--resume DIR", ("train", config, *huge, "--run-dir", scratch("next"), "--resume", good), 2, key),
            ("--init-from", ("train", config, *huge, "--run-dir", scratch("next"), "--init-from", good), 2, key),
            ("--init-from a Hugging Face folder",
             ("train", config, *huge, "--run-dir", scratch("next"), "--init-from", weights), 2,
             rf"model\.vocab_size: {vocabulary} in config\.json, 999999999 now"),
            ("--resume auto", ("train", config, *huge, "--run-dir", folder, "--resume", "auto"), 2, key)):
        run = with_little_memory(*words)
        expect(f"{what}: exit code {code}, with both sizes", run.code == code and re.search(pattern, run.err), run)
    shutil.rmtree(good)
    bad.rename(good)
    run = with_little_memory("train", config, "--run-dir", folder, "--resume", "auto")
    expect("--resume auto passes over one that contradicts itself",
           run.code == 0 and says_once(run, "2 is damaged") and says_once(run, "resuming after step 1"), run)


@case
def another_steps_folder():
    """Catches: a renamed checkpoint that --resume auto takes for the newest."""
    folder = scratch("run")
    training(folder, 2, values=VALUES)
    shutil.copytree(checkpoint(folder, 1), checkpoint(folder, 50))
    run = training(folder, 2, values={**VALUES, "train.steps": 3}, options=AUTO)
    expect("it is passed over, and said", run.code == 0 and says_once(run, "step-00000050 is another step's"), run)
    expect("the newest real one is taken", says_once(run, "resuming after step 2"), run)


@case
def pipes():
    """Catches: a pipe in a file's place that is waited for without end."""
    folder = scratch("run")
    training(folder, 2, values=VALUES)
    bad = checkpoint(folder, 2)
    for name in (FILE, "meshard.json", ".metadata"):
        (bad / name).unlink()
        os.mkfifo(bad / name)
        run = training(scratch("next"), 2, values={**VALUES, "train.steps": 3}, options=("--resume", str(bad)))
        expect(f"{name}: refused", run.code == 70 and says_once(run, "no regular file"), run)


main()
