"""Spells other people's names of ResNet's weights in ours; ours are torchvision's.

Known: torchvision (with or without `module.`), NVIDIA (`layers.0` for `layer1`), the MindSpore zoo
(`end_point`, `down_sample_layer`, `bn1d`; SE-ResNet50 by its source's structure, not checked
against a file), mindcv (`classifier`, `down_sample`), and our own.
"""

import re
from collections.abc import Iterable
from typing import Optional

RULES = [
    (r"^module\.", ""),
    (r"^(end_point|classifier)\.", "fc."),
    (r"\.(down_sample_layer|down_sample)\.", ".downsample."),
    (r"\bbn(\d)d\.", r"bn\1."),
]
# In the zoo's SE blocks that halve the image, pools take places in two sequences.
ZOO_SE = [
    (r"^(layer[234]\.0\.downsample)\.1\.", r"\1.0."),
    (r"^(layer[234]\.0\.downsample)\.2\.", r"\1.1."),
    (r"\.e2\.0\.", ".conv2."),
    (r"\.e2\.1\.", ".bn2."),
    (r"(\.\d+)\.se_dense", r"\1.se.se_dense"),
]


def dialect(names: Iterable[str]) -> str:
    """Who wrote the file. Raises ValueError."""
    names = {re.sub(r"^module\.", "", name) for name in names}
    if any(name.startswith("layers.0.") for name in names):
        return "nvidia"
    if "conv1_0.weight" in names and "end_point.weight" in names:
        return "zoo_se"
    if {"conv1.weight", "conv1_0.weight"} & names and any("layer1.0." in n for n in names):
        return "torchvision"
    raise ValueError("the names are not a ResNet's")


def canonical(name: str, spoken: str = "torchvision") -> Optional[str]:
    """The common spelling of a name; None for what is dropped on purpose."""
    for pattern, ours in RULES:
        name = re.sub(pattern, ours, name)
    if spoken == "nvidia":
        name = re.sub(r"^layers\.(\d)\.", lambda m: f"layer{int(m[1]) + 1}.", name)
    for pattern, ours in ZOO_SE if spoken == "zoo_se" else ():
        name, count = re.subn(pattern, ours, name)
        if count:
            break
    return name


def fit_shape(name: str, shape: tuple, wanted: tuple) -> Optional[str]:
    """How an array of another shape can serve: not at all."""
    return None


def implied(name: str, spoken: str) -> Optional[float]:
    """The value of a weight that the file leaves out: nothing may be left out."""
    return None
