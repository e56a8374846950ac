"""What the scripts about checkpoints share: where they lie, and their bytes."""
from harness import Metrics, training

# A constant rate: the schedule does not depend on train.steps, which a resumed run may raise.
CONSTANT = {"train.eval_interval": 0, "lr_schedule.type": "constant", "lr_schedule.min_lr": 0}
AUTO = ("--resume", "auto")


def checkpoint(folder, step):
    return folder / "checkpoints" / f"step-{step:08}"


def steps_saved(folder):
    """Steps of complete checkpoints."""
    return sorted(int(path.parent.name[5:]) for path in (folder / "checkpoints").glob("step-*/.metadata")
                  if not path.parent.name.endswith(".partial"))


def data_of(folder):
    """The bytes of a checkpoint's data files by name."""
    return {path.name: path.read_bytes() for path in folder.glob("*.distcp")}


def convert(source, folder, ranks, config, values):
    """Loads a checkpoint and saves it again as another layout does, without a step between: it ends with 70, as a
    stop without a step that is worth another start."""
    folder.mkdir(parents=True)
    (folder / "STOP").touch()
    return training(folder, ranks, config, {**CONSTANT, "train.steps": 1000, **values}, ("--resume", source))


def experts(metrics, key):
    return [[layer[key] for layer in line["moe"]["layers"]] for line in metrics.steps if "moe" in line]


def history(folder):
    """All of a run that must not depend on where it was interrupted."""
    metrics = Metrics(folder)
    columns = {key: metrics.texts(key) for key in ("step", "tokens", "loss", "grad_norm", "lr")}
    return columns | {key: experts(metrics, key) for key in ("counts", "bias", "count_total")}


def parts_that_differ(first, second):
    return [key for key in first if first[key] != second.get(key)]
