"""Meshard computes what Hugging Face's model classes compute from the same weights, in fp32: logits within 1e-5 of the
largest, the same experts, weights of the experts within 1e-5 of the largest. What differs on purpose is shown to.

Called as `hugging_face.py SOURCE_FOLDER PROGRAM [CASE...]`; PROGRAM is interop_hf_logits. Needs what setup.sh installs.
"""
import json
import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]
from harness import BINARY, SOURCE, Run, Skip, case, expect, main, scratch
from hugging_face_models import OF_5, VARIANTS, variants_of

TOLERANCE = 1e-5
FIELDS = {**VARIANTS, **OF_5}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # more wait for one another longer than these models take
CLASSES = {"glm4_moe": "Glm4MoeForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "llama": "LlamaForCausalLM",
           "qwen3": "Qwen3ForCausalLM"}


def both(version):
    """{variant: (Hugging Face's results, ours)}."""
    packages = SOURCE / ".venv" / f"hf-{version}"
    if not packages.is_dir():
        raise Skip(f"transformers {version} is not installed; tests/interop/setup.sh does it, given a network")
    folder, names = scratch(version), list(variants_of(version))
    theirs = Run([SOURCE / ".venv/bin/python", "-B", HERE / "hugging_face_models.py", folder],
                 env={"PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error",
                      **ONE_THREAD}).wait()
    expect(f"transformers {version} makes and runs {len(names)} models",
           theirs.code == 0 and f"transformers {version}," in theirs.out, theirs)
    ours = Run([BINARY, *(folder / name for name in names)], env=ONE_THREAD).wait()
    expect("Meshard runs the same models, and reads each with all fields as the same one", ours.code == 0, ours)
    return {name: tuple(json.loads((folder / name / file).read_text()) for file in ("expected.json", "meshard.json"))
            for name in names}


def worst(theirs, ours):
    """Largest difference, relative to the largest value."""
    assert len(theirs) == len(ours) > 0 and all(map(math.isfinite, theirs + ours))
    return max(abs(a - b) for a, b in zip(theirs, ours)) / max(map(abs, theirs))


def by_expert(layer):
    """[{expert: weight}] of the tokens: the order of a token's experts means nothing."""
    return [dict(zip(ids, weights)) for ids, weights in zip(layer["ids"], layer["weights"])]


def check_routing(name, theirs, ours):
    expected = FIELDS[name]["num_hidden_layers"] - dense_layers(FIELDS[name])
    expect(f"{name}: both have {expected} layers with experts, the same ones",
           [layer["layer"] for layer in theirs] == [layer["layer"] for layer in ours] and len(ours) == expected)
    a, b = ([token for layer in side for token in by_expert(layer)] for side in (theirs, ours))
    other = [i for i, (x, y) in enumerate(zip(a, b)) if x.keys() != y.keys()]
    if not a or not expect(f"{name}: the same experts for {len(a)} tokens", len(a) == len(b) and not other,
                           f"other experts for tokens {other}, counted over all layers"):
        return
    away = worst([w for x in a for _, w in sorted(x.items())], [w for x in b for _, w in sorted(x.items())])
    expect(f"{name}: their weights ({away:.1e})", away <= TOLERANCE)


def dense_layers(fields):
    if fields["model_type"] == "glm4_moe":
        return fields["first_k_dense_replace"]
    return len(fields["mlp_only_layers"]) if fields["model_type"] == "qwen3_moe" else fields["num_hidden_layers"]


def check_equal(name, theirs, ours):
    check_routing(name, theirs["routing"], ours["routing"])
    away = worst(theirs["logits"], ours["logits"])
    expect(f"{name}: logits of {CLASSES[FIELDS[name]['model_type']]} ({away:.1e})", away <= TOLERANCE)


@case
def transformers_5():
    """Catches: any wrong formula, order, name, default or shape on the way from config.json to logits."""
    for name, (theirs, ours) in both("5.18.0").items():
        check_equal(name, theirs, ours)


@case
def transformers_4():
    """Catches: the same; and a router that masks groups with 0, as 4.x does, instead of -inf."""
    results = both("4.57.6")
    negative = results.pop("glm_negative_scores")
    for name, (theirs, ours) in results.items():
        check_equal(name, theirs, ours)

    # All biased scores are below 0, so 4.x prefers the experts of the groups that it dropped; and only those.
    theirs, ours = (result["routing"][0]["ids"] for result in negative)
    of_a_group = VARIANTS["glm_negative_scores"]["n_routed_experts"] // VARIANTS["glm_negative_scores"]["n_group"]
    apart = sum({i // of_a_group for i in a}.isdisjoint(i // of_a_group for i in b) for a, b in zip(theirs, ours))
    expect(f"glm_negative_scores: 4.57.6 takes every token to groups that were not kept ({apart} of {len(theirs)})",
           apart == len(theirs) > 0)
    away = worst(negative[0]["logits"], negative[1]["logits"])
    expect(f"glm_negative_scores: so its logits differ from ours ({away:.1e})", away > 1e-3)


if __name__ == "__main__":
    main()
