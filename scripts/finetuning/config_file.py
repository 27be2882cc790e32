"""Writes the config file of a fine-tuning: a recipe of the zoo, changed for a user's own videos.

The rules are simple on purpose, because the file is the user's to change; docs/own_videos.md lists
them.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, get_args, get_type_hints

import yaml

from utils import runtime
from utils.config import (
    NetworkConfig,
    VideoData,
    VideoSet,
    apply_override,
    load_config,
    read_yaml,
)
from utils.data.class_names import find_mirror_pairs
from utils.data.loader import read_free_memory
from utils.files import report_write_errors, write_text
from utils.networks import Network, find_network_of_yaml

# Of the training
UPDATES = 1500  # from scratch
UPDATES_PRETRAINED = 600
EPOCHS = (10, 100)  # at least and at most
LR_PRETRAINED = 0.1  # of the recipe's rate
FREE_MEMORY = 0.8  # the fraction of it that a batch may take on a CPU
# A pack pays if each video is read so often, and is so large
PACK_EPOCHS = 10
PACK_BYTES = 200_000
SET_NAME = "videos"  # of the data set of a network that takes several
# What the command sets; the user's other settings have precedence over its rules.
OWN_SETTINGS = ("data.root", "data.sets", "data.lists", "data.source", "data.train", "data.val")
OWN_SETTINGS += ("data.test", "data.train_list", "data.val_list", "data.test_list")
OWN_SETTINGS += ("model.num_classes", "train.pretrained", "train.new_head")


class Start(NamedTuple):
    """What a fine-tuning starts from: `cfg` is the recipe's, with the user's settings."""

    network: Network
    recipe: Path
    cfg: NetworkConfig
    settings: list[str]  # section.key=value
    checkpoint: Optional[Path]


class VideoCounts(NamedTuple):
    """The videos of the lists, and their mean size in bytes."""

    train: int
    val: int
    size: float


def load_start(recipe: Path, settings: Sequence[str], checkpoint: Optional[Path]) -> Start:
    """Checks recipe and settings; raises ValueError."""
    network = find_network_of_yaml(recipe)
    for setting in settings:
        name = setting.partition("=")[0]
        if name in OWN_SETTINGS:
            raise ValueError(f"--{name}: VIDEOS and --checkpoint decide it; edit the config file")
    device = "Ascend" if any(Path("/dev").glob("davinci[0-9]*")) else "CPU"
    cfg = load_config(network.config, recipe, [f"run.device={device}", *settings])
    if len(cfg.class_counts) > 1:
        raise ValueError(
            f"--recipe: {recipe.stem} trains on {len(cfg.class_counts)} data sets at once; "
            "mvit_multi_plain_s_k400_16x4 is a recipe for one"
        )
    if cfg.has_several_labels:
        raise ValueError(
            "model.labels multi: folders of classes give a video one label; write lists, and give "
            "them to train.py (docs/labels.md)"
        )
    return Start(network, recipe=recipe, cfg=cfg, settings=list(settings), checkpoint=checkpoint)


def choose_list_names(network: Network) -> str:
    """The kind of lists that a network reads, as in `make_lists.py --names`."""
    data = get_type_hints(network.config)["data"]
    if issubclass(data, VideoSet):
        return "txt"
    return "csv" if issubclass(data, VideoData) else "images"


def inspect_network(start: Start) -> int:
    """The largest batch that fits the memory; that of the recipe if the device is no CPU.

    It builds the network: raises ValueError if the checkpoint is of another one.
    """
    # MindSpore is imported only if the settings and the videos are valid.
    from utils.complexity import count_layers
    from utils.train import memory
    from utils.weights import checkpoint

    cfg = start.cfg
    runtime.start(dataclasses.replace(cfg.run, device="CPU"))
    net = start.network.build_model(**cfg.model_arguments())
    if start.checkpoint:
        checkpoint.load(net, path=start.checkpoint, new_head=True, head=start.network.classifier)
    if cfg.run.device != "CPU":
        return cfg.data.batch
    cost = memory.estimate_step(net, count_layers(net, start.network.get_input_shape(cfg)))
    free = FREE_MEMORY * read_free_memory() - cost.fixed
    return max(1, int(free / (cost.clip * cfg.data.clips_per_sample)))


def write_config_file(
    path: Path, start: Start, videos: Path, names: Sequence[str], counts: VideoCounts, fitting: int
) -> None:
    """Writes `path`; `names` are the class names, `fitting` the largest batch that fits.

    Raises ValueError, and writes nothing, if the user's settings do not fit together.
    """
    values = build_values(
        start, folder=path.parent, videos=videos, names=names, counts=counts, fitting=fitting
    )
    text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=100)
    head = f"# {start.recipe.stem} for the videos of {videos.name!a}.\n"
    head += "# Made by scripts/finetune.py, which does not write it again: it is yours to change.\n"
    with report_write_errors(path, "--out"):
        write_text(path, head + text)
    try:
        load_config(start.network.config, path)
    except ValueError:
        path.unlink()
        raise


def build_values(
    start: Start,
    folder: Path,
    videos: Path,
    names: Sequence[str],
    counts: VideoCounts,
    fitting: int,
) -> dict[str, dict[str, Any]]:
    """The settings by section: those of the recipe, of the rules, of the user."""
    cfg = start.cfg
    batch = max(1, min(cfg.data.batch, fitting, max(2, counts.train // 4)))
    user = {name: value for name, _, value in (text.partition("=") for text in start.settings)}
    batch = cfg.data.batch if "data.batch" in user else batch
    steps = max(1, counts.train // batch)
    low, high = EPOCHS
    updates = UPDATES_PRETRAINED if start.checkpoint else UPDATES
    epochs = min(max(math.ceil(updates / steps), low), high)
    epochs = cfg.train.epochs if "train.epochs" in user else epochs
    rules = {
        "run": choose_run(cfg, folder=folder, epochs=epochs, steps=steps),
        "data": {"batch": batch},
        "train": choose_recipe(start, epochs, steps),
    }
    if epochs >= PACK_EPOCHS and counts.size >= PACK_BYTES and isinstance(cfg.data, VideoData):
        rules["data"]["packed"] = str(folder / "packed")
    values = read_yaml(start.recipe)
    for section, settings in rules.items():
        for key, value in settings.items():
            if f"{section}.{key}" not in user:
                values.setdefault(section, {})[key] = value
    describe_data(values, cfg=cfg, folder=folder, videos=videos, names=names, has_val=counts.val)
    for setting in start.settings:
        apply_override(start.network.config, values, setting)
    return values


def choose_run(cfg: NetworkConfig, folder: Path, epochs: int, steps: int) -> dict[str, Any]:
    every = max(1, epochs // 20)
    return {
        "device": cfg.run.device,
        "all_reduce": "none",
        "log_every": min(20, steps),
        "save_every": every,
        "eval_every": every,
        "keep_best": "top1",
        "out": str(folder / "run"),
    }


def choose_recipe(start: Start, epochs: int, steps: int) -> dict[str, Any]:
    """Epochs, and all that depends on them; from a checkpoint lower rates and fixed statistics."""
    train = vars(start.cfg.train)
    scale = LR_PRETRAINED if start.checkpoint else 1.0
    rules: dict[str, Any] = {"epochs": epochs}
    for name in ("lr", "warmup_lr", "end_lr"):
        if train.get(name):
            rules[name] = float(f"{scale * train[name]:.6g}")
    if train["warmup_epochs"]:
        rules["warmup_epochs"] = round(train["warmup_epochs"] * epochs / train["epochs"], 2)
    if "milestones" in train:
        rules["milestones"] = [max(1, round(0.4 * epochs)), max(1, round(0.8 * epochs))]
    if train.get("schedule_epochs"):
        rules["schedule_epochs"] = 0
    if train.get("precise_bn"):
        rules["precise_bn"] = 0 if start.checkpoint else min(train["precise_bn"], -(-steps // 2))
    rules["pretrained"] = str(start.checkpoint.resolve()) if start.checkpoint else None
    rules["new_head"] = bool(start.checkpoint)
    if start.checkpoint:
        if "batch_norm" in train:
            choices = get_args(get_type_hints(type(start.cfg.train))["batch_norm"])
            rules["batch_norm"] = "partial" if "partial" in choices else "frozen"
        if start.cfg.run.device == "CPU":
            rules["freeze"] = "backbone"
    return rules


def describe_data(
    values: dict[str, dict[str, Any]],
    cfg: NetworkConfig,
    folder: Path,
    videos: Path,
    names: Sequence[str],
    has_val: int,
) -> None:
    """Sets the folders, the lists and the classes. Without validation videos it is on the test."""
    data = values["data"]
    swapped = [list(pair) for pair in find_mirror_pairs(names)]
    data.pop("labels", None)
    if isinstance(cfg.data, VideoSet):
        data.update(get_lists(folder / "good", has_val))
        data.update(root=str(videos), swap_labels=swapped if cfg.data.flip else [])
        data["source"] = "video"
    elif "sets" in data:
        first = data["sets"][0]
        inherited = ("sampling", "clips", "crops", "short_side", "flip")
        flips = first.get("flip", True)
        data["sets"] = [
            {
                "name": SET_NAME,
                "num_classes": len(names),
                **{key: first[key] for key in inherited if key in first},
                "swap_labels": swapped if flips else [],
            }
        ]
        data.update(root=str(videos), lists=str(folder / "good"))
        values.setdefault("eval", {})["val_skip"] = 1
        return
    else:
        data.update(root=str(folder / "lists"), source="folder", train="train", test="test")
        data["val"] = "val" if has_val else ""
    values["model"]["num_classes"] = len(names)


def get_lists(folder: Path, has_val: int) -> Mapping[str, str]:
    """The settings of the annotation files of a network for one data set."""
    lists = {f"{name}_list": str(folder / f"{name}.txt") for name in ("train", "test")}
    return {**lists, "val_list": str(folder / "val.txt")} if has_val else lists
