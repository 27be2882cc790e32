"""Writes the config file of a fine-tuning: a recipe of the zoo, changed for a user's own videos.

The rules are simple on purpose, because the file is the user's to change; docs/own_videos.md lists
them.
"""

import copy
import dataclasses
import math
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Optional, get_args, get_type_hints

import yaml

from utils import runtime
from utils.cores import read_free_memory
from utils.files import report_write_errors, write_text
from utils.load_config import apply_override, build_config, read_yaml, resolve_yaml, to_dict
from utils.messages import print_line
from utils.networks import Network, find_network_of_yaml, load_own_config
from utils.settings import NetworkConfig, VideoData, VideoSet

# Of the training
UPDATES = 1500  # from scratch
UPDATES_PRETRAINED = 600
EPOCHS = (10, 100)  # at least and at most
LR_PRETRAINED = 0.1  # of the recipe's rate
FEATURE_DRAWS = 5  # if only the classifier is trained, on a CPU
FREE_MEMORY = 0.8  # the fraction of it that a batch may take on a CPU
# Small copies of the videos pay if each video is read so often, and is so large
COPY_EPOCHS = 10
COPY_BYTES = 200_000
COPIES = "copies"  # their folder
WITHOUT_WEIGHTS = "tsm_r18_diff_8f"  # the recipe
SCRATCH = "no --checkpoint: the training starts from random weights, which learn little about "
SCRATCH += f"scenes; docs/weights.md names others; without them take --recipe {WITHOUT_WEIGHTS}"
# Of a training step on a CPU
FIXED_BYTES = 0.5e9  # of weights, gradients, buffers
COMPILER_BYTES = 3e6  # for a layer
TRANSFORMER = ("layer norm", "dense", "attention")  # kinds of layers
COPIES_OF_MAPS = 3.6  # of such a layer
SET_NAME = "videos"  # of the data set of a network that takes several
COUNTERCLOCKWISE = re.compile("(counter|anti)[- _]?clockwise")
OPPOSITES = {"left": "right", "counterclockwise": "clockwise"}
OPPOSITES |= {b: a for a, b in OPPOSITES.items()}
# What the command sets; the user's other settings have precedence over its rules.
OWN_SETTINGS = ("data.root", "data.sets", "data.lists", "data.source", "data.train", "data.val")
OWN_SETTINGS += ("data.test", "data.train_list", "data.val_list", "data.test_list")
OWN_SETTINGS += ("model.num_classes", "train.pretrained", "train.new_head")


class Start(NamedTuple):
    """What a fine-tuning starts from: a recipe, or the settings that a checkpoint has."""

    network: Network
    name: str
    values: dict[str, Any]  # {section: {key: value}}
    cfg: NetworkConfig  # with the settings of the user
    settings: dict[str, str]  # of the user, {"section.key": value}
    checkpoint: Optional[Path]
    freeze: str  # `train.freeze`; by default the backbone of a checkpoint, on a CPU


class VideoCounts(NamedTuple):
    """The videos of the lists, and their mean size in bytes."""

    train: int
    val: int
    size: float


def read_start(recipe: str, checkpoint: Optional[Path], settings: Sequence[str]) -> Start:
    """The recipe of a name or path, or else that in the checkpoint, with `section.key=value`s.

    Raises ValueError if there is none, or if settings do not fit.
    """
    if recipe:
        path = resolve_yaml(Path(recipe))
        network, name, own = find_network_of_yaml(path), path.stem, read_yaml(path)
    elif checkpoint:
        network, cfg = load_own_config(checkpoint)
        name, own = cfg.run.out.name, to_dict(cfg)
    else:
        raise ValueError(f"--recipe: take {WITHOUT_WEIGHTS}, or a --checkpoint, which has its own")
    device = "Ascend" if any(Path("/dev").glob("davinci[0-9]*")) else "CPU"
    values = {key: value for key, _, value in (text.partition("=") for text in settings)}
    if values.get("model.labels", own.get("model", {}).get("labels")) == "multi":
        advice = "write lists, and give them to train.py (docs/labels.md)"
        raise ValueError(f"model.labels multi: class folders give a video one label; {advice}")
    build = partial(build_config, network.config, name=name, owner=name)
    train = build(copy.deepcopy(own), overrides=[]).train
    epochs = values.get("train.epochs", "")
    share = int(epochs) / train.epochs if epochs.isdecimal() else 1.0
    warmup = round(train.warmup_epochs * share, 2)  # in proportion, unless the user sets it
    overrides = [f"run.device={device}", f"train.warmup_epochs={warmup}", *settings]
    cfg = build(copy.deepcopy(own), overrides=overrides)
    for key in values:
        if key in OWN_SETTINGS:
            raise ValueError(f"--{key}: VIDEOS and --checkpoint decide it; edit the config file")
    if len(cfg.class_counts) > 1:
        advice = "mvit_multi_plain_s_k400_16x4 is a recipe for one"
        raise ValueError(f"--recipe: {name} trains on several data sets at once; {advice}")
    is_slow = checkpoint and cfg.run.device == "CPU" and "train.freeze" not in values
    freeze = "backbone" if is_slow else cfg.train.freeze
    return Start(network, name, own, cfg, values, checkpoint, freeze)


def inspect_network(start: Start) -> int:
    """About the largest batch that fits the memory; that of the recipe if the device is no CPU.

    It builds the network: raises ValueError if the checkpoint is of another one, or if train.freeze
    does not fit.
    """
    # MindSpore is imported only if the settings and the videos are valid.
    from utils.complexity import count_layers
    from utils.inference.checkpoint import draw_no_weights
    from utils.train.plan import freeze_weights
    from utils.weights import checkpoint

    cfg = start.cfg
    network = start.network
    runtime.start(dataclasses.replace(cfg.run, device="CPU"))
    with draw_no_weights():  # as `utils.inference.checkpoint.build_network`
        net = network.build_model(**cfg.model_arguments())
    if start.checkpoint:
        naming = network.parameter_names()
        checkpoint.load(net, start.checkpoint, True, head=network.classifier, naming=naming)
    if cfg.run.device != "CPU":
        return cfg.data.batch
    # The forward pass keeps maps for the backward pass, which ends at the first trained layer: a
    # convolutional network the output of each layer once, a transformer also its transposed copies
    # and products. The constants are about those of measured peaks.
    freeze_weights(net, start.freeze, network.classifier)
    layers = count_layers(net, network.get_input_shape(cfg))
    first = next(k for k, layer in enumerate(layers) if layer.parameters)
    kept = sum(
        layer.outputs * (COPIES_OF_MAPS if layer.kind in TRANSFORMER else 1.0)
        for layer in layers[max(first - 1, 0) :]  # from the one whose output is read there
    )
    clip = max(kept, *(layer.inputs + layer.outputs for layer in layers))
    free = FREE_MEMORY * read_free_memory() - FIXED_BYTES - COMPILER_BYTES * len(layers)
    return max(1, int(free / (4 * clip * cfg.data.clips_per_sample)))


def write_config_file(
    path: Path, start: Start, videos: Path, names: Sequence[str], counts: VideoCounts, fitting: int
) -> NetworkConfig:
    """Writes `path`: the settings of the recipe, of the rules, of the user. Says what it decides.

    `names` are the class names, `fitting` is the largest batch that fits. Raises ValueError, and
    writes nothing, if the user's settings do not fit together.
    """
    cfg = start.cfg
    batch = max(1, min(cfg.data.batch, fitting, max(2, counts.train // 4)))
    batch = cfg.data.batch if "data.batch" in start.settings else batch
    steps = max(1, counts.train // batch)
    updates = UPDATES_PRETRAINED if start.checkpoint else UPDATES
    epochs = min(max(math.ceil(updates / steps), EPOCHS[0]), EPOCHS[1])
    epochs = cfg.train.epochs if "train.epochs" in start.settings else epochs
    every = max(1, epochs // 20)
    draws = FEATURE_DRAWS if start.freeze == "backbone" and cfg.run.device == "CPU" else 0
    draws = cfg.train.feature_draws if "train.feature_draws" in start.settings else draws
    reads = draws or epochs  # of a video
    root, lists = videos, path.parent / "good"
    if reads >= COPY_EPOCHS and counts.size >= COPY_BYTES and isinstance(cfg.data, VideoData):
        root = lists = path.parent / COPIES

    own = describe_data(cfg, lists, root, names, has_val=counts.val > 0)
    model: dict[str, Any] = {} if "sets" in own else {"num_classes": len(names)}
    own["batch"] = batch
    if draws:  # each of these changes the features at random
        own.update(mixup=0.0, cutmix=0.0)
        model.update({"drop_path": 0.0} if "drop_path" in vars(cfg.model) else {})
    run = {"device": cfg.run.device, "all_reduce": "none", "log_every": min(20, steps)}
    run.update(save_every=every, eval_every=every, keep_best="top1", out=str(path.parent / "run"))
    rules = {"data": own, "model": model, "run": run}
    rules["train"] = {**choose_recipe(start, epochs, steps), "feature_draws": draws}
    rules["eval"] = {"val_skip": 1} if "sets" in own else {}

    values = copy.deepcopy(start.values)
    values["data"].pop("labels", None)
    for section, settings in rules.items():
        values.setdefault(section, {}).update(settings)
    for name, value in start.settings.items():
        apply_override(start.network.config, values, f"{name}={value}")
    text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=100)
    head = f"# {start.name} for the videos of {videos.name!a}.\n"
    head += "# Made by scripts/finetune.py, which does not write it again: it is yours to change.\n"
    written = build_config(start.network.config, values, path.stem, [], owner=str(path))
    with report_write_errors(path, "--out"):
        write_text(path, head + text)
    if not start.checkpoint:
        print_line(SCRATCH)
    print_line(
        f"wrote {path}, which is yours to change: {cfg.run.device}, {len(names)} classes, "
        f"{counts.train} training videos, data.batch {batch}, "
        f"{epochs} epochs, train.lr {written.train.lr:g}, train.freeze {written.train.freeze!r}"
    )
    return written


def describe_data(
    cfg: NetworkConfig, lists: Path, root: Path, names: Sequence[str], has_val: bool
) -> dict[str, Any]:
    """Folders, lists and classes; validations without a list of their own use the test list."""
    data: Any = cfg.data
    if not isinstance(cfg.data, VideoData):
        splits = {"train": "train", "test": "test", "val": "val" if has_val else ""}
        return {"root": str(lists.with_name("lists")), "source": "folder", **splits}
    first = data if isinstance(cfg.data, VideoSet) else data.sets[0]
    swapped = [list(pair) for pair in find_mirror_pairs(names)] if first.flip else []
    if isinstance(cfg.data, VideoSet):
        files = {f"{name}_list": str(lists / f"{name}.txt") for name in ("train", "test")}
        files["val_list"] = str(lists / "val.txt") if has_val else ""
        return {"root": str(root), "source": "video", "swap_labels": swapped, **files}
    inherited = ("sampling", "clips", "crops", "short_side", "flip")
    kept = {name: vars(first)[name] for name in inherited}
    dataset = {"name": SET_NAME, "num_classes": len(names), **kept, "swap_labels": swapped}
    return {"root": str(root), "lists": str(lists), "sets": [dataset]}


def choose_recipe(start: Start, epochs: int, steps: int) -> dict[str, Any]:
    """Epochs, and all that depends on them; from a checkpoint lower rates and fixed statistics."""
    train = vars(start.cfg.train)
    scale = LR_PRETRAINED if start.checkpoint else 1.0
    rules: dict[str, Any] = {"epochs": epochs, "freeze": start.freeze}
    for name in ("lr", "warmup_lr", "end_lr"):
        if train.get(name):
            rules[name] = float(f"{scale * train[name]:.6g}")
    if train["base_batch"] == 0:  # the rate is for the batch of the recipe
        rules["base_batch"] = start.values["data"]["batch"]
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
    if start.checkpoint and "batch_norm" in train:
        choices = get_args(get_type_hints(type(start.cfg.train))["batch_norm"])
        rules["batch_norm"] = "partial" if "partial" in choices else "frozen"
    return rules


def list_files(cfg: NetworkConfig, folder: Path) -> tuple[list[Path], list[str]]:
    """The lists that a network reads, if they are in a folder, and the settings that say so."""
    names = ["train", "test", "val"]
    if not isinstance(cfg.data, VideoSet):
        return [folder / f"{name}.csv" for name in names], [f"--data.lists={folder}"]
    files = [folder / f"{name}.txt" for name in (names if cfg.data.val_list else names[:2])]
    return files, [f"--data.{file.stem}_list={file}" for file in files]


def find_mirror_pairs(names: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of labels that mirroring exchanges: by the words of OPPOSITES in their names."""
    normalized = [COUNTERCLOCKWISE.sub("counterclockwise", name.lower()) for name in names]
    label_of = {name: label for label, name in enumerate(normalized)}
    words = re.compile("|".join(OPPOSITES))
    mirrored = [words.sub(lambda word: OPPOSITES[word[0]], name) for name in normalized]
    pairs = ((label, label_of.get(name, -1)) for label, name in enumerate(mirrored))
    return [(a, b) for a, b in pairs if normalized[a] != mirrored[a] and a < b]
