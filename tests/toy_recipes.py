"""Every recipe at toy size, and toy data sets for every network."""

import functools
from pathlib import Path
from typing import Optional

import numpy as np
from PIL import Image

from scripts.data.synthetic.motion_videos import draw_dataset, draw_sets
from scripts.data.synthetic.pattern_images import PATTERNS, draw_image
from tests.helpers import load_smoke_config
from utils.data.sampler import TrainSampler
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import find_build, find_network, list_networks
from utils.runtime import Runtime
from utils.train.plan import Plan
from utils.train.train import Build, build_training

FOLDERS = [ROOT / network / "configs" for network in list_networks()]
YAMLS = sorted(path for folder in FOLDERS for path in folder.glob("*.yaml"))
# Settings that make the networks and clips of a folder's recipes small.
TOY = {
    "tsm": ["data.crop=32", "data.batch=2", "data.segments=4"],
    "x3d": ["data.scales=[32,32]", "data.crop=32", "data.batch=2", "data.frames=4"],
    "resnet50": ["data.resize=64", "data.crop=64", "data.batch=2", "eval.crop=0"],
    "mvit_multi": ["data.crop=32", "data.batch=2", "data.frames=4", "model.dim=8"]
    + ["model.depth=3", "model.stage_starts=[1]", "model.kv_stride=4"],
}

# Of smoke recipes: one that reads streams frame by frame, one with several clips.
OWN = {
    "tsm": ["model.first_width=8", "model.online=true"],
    "mvit_multi": ["data.repeated_aug=2"],
    "resnet50": ["data.source=folder", "data.augment=crop", "model.num_classes=4"]
    + ["data.workers=1"],
}


@functools.cache
def load_toy_recipe(path: Path):
    """Loads a config file for the CPU with a small network, small images and few epochs."""
    network = path.parents[1].name
    config = find_network(network).config
    cfg = load_config(config, path)
    overrides = ["run.device=CPU", "run.all_reduce=[]", "train.epochs=9"]
    overrides += ["train.pretrained=null", *TOY[network]]
    if not cfg.run.dynamic_loss_scale:
        overrides.append("run.loss_scale=1")  # two small images have very large gradients
    if network == "x3d":
        overrides.append("model.depth_factor=0.4")
    if network == "resnet50":
        overrides.append("train.warmup_epochs=2")
    is_resnet = getattr(cfg.model, "arch", "").startswith("resnet")
    if is_resnet and not getattr(cfg.model, "non_local", False):
        overrides += ["model.arch=resnet18", "model.first_width=16"]
    return load_config(config, path, overrides)


def list_toy_settings(network: str) -> list[str]:
    """The settings of the smoke recipe at toy size, for the data of `draw_samples`."""
    return [*TOY[network], *OWN.get(network, []), "eval.batch=2"]


def load_toy_config(network: str, *settings: str):
    return load_smoke_config(network, *list_toy_settings(network), *settings)


def build_toy_training(network: str, cfg, build: Optional[Build] = None) -> tuple:
    """The step and the parts of a training with two batches of two an epoch.

    `build` replaces that of the train.py.
    """
    sampler = TrainSampler(4, batch=2, rank=0, size=1, seed=0)
    plan = Plan(find_network(network), cfg, Runtime(), sampler)
    return build_training(plan, build or find_build(network))


def draw_samples(network: str, root: Path) -> Path:
    """Draws a toy data set of the network into `root`; returns one sample."""
    if network == "mvit_multi":
        draw_sets(root, train_per_motion=1, test_per_motion=1, seed=1)
    elif network != "resnet50":
        draw_dataset(root, train_per_motion=1, test_per_motion=1, seed=1)
    else:
        for split in ("train", "val"):
            for name in PATTERNS[:4]:
                (root / split / name).mkdir(parents=True)
                image = Image.fromarray(draw_image(name, np.random.RandomState(0)))
                image.save(root / split / name / "0.jpg")
    return next(path for path in sorted(root.rglob("*.*")) if path.suffix in (".mp4", ".jpg"))
