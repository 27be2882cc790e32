"""Spells other people's names of TSM's weights in ours; ours are the original's.

Known: the original's files (with or without `module.`, shifted or not), its online MobileNetV2,
torchvision's ImageNet ResNets, mmaction2's TSM (its MobileNetV2 by its documented structure, not
checked against a file), and this zoo's own names.

Two names mean the same weight when `canonical` gives the same text for both. It leaves out `.net`,
so that shifted and unshifted networks can load each other, and calls every classifier `new_fc`.
"""

import re
from collections.abc import Iterable
from typing import Optional

MOBILE_BLOCK = r"^backbone\.layer(\d)\.(\d+)\.conv\.(\d)\.(conv|bn)\.(.*)$"
# First features index of each stage of mmaction2's MobileNetV2.
MOBILE_STAGES = {1: 1, 2: 2, 3: 4, 4: 7, 5: 11, 6: 14, 7: 17}

# Its ends; ResNets have a conv1 of another meaning.
MMACTION2_MOBILE = [
    (r"^backbone\.conv1\.conv\.", "base_model.features.0.0."),
    (r"^backbone\.conv1\.bn\.", "base_model.features.0.1."),
    (r"^backbone\.conv2\.conv\.", "base_model.features.18.0."),
    (r"^backbone\.conv2\.bn\.", "base_model.features.18.1."),
]
MMACTION2 = [
    (r"^cls_head\.fc_cls\.", "new_fc."),
    (r"\.non_local_block\.(g|phi)\.0\.conv\.", r".nl.\1.0."),
    (r"\.non_local_block\.theta\.conv\.", ".nl.theta."),
    (r"\.non_local_block\.conv_out\.conv\.", ".nl.W.0."),
    (r"\.non_local_block\.conv_out\.bn\.", ".nl.W.1."),
    (r"\bconv(\d)\.conv\.", r"conv\1."),
    (r"\bconv(\d)\.bn\.", r"bn\1."),
    (r"\.downsample\.conv\.", ".downsample.0."),
    (r"\.downsample\.bn\.", ".downsample.1."),
    (r"^backbone\.", "base_model."),
]


def dialect(names: Iterable[str]) -> str:
    """Who wrote the file: one of the spellings that `canonical` knows. Raises ValueError."""
    names = {name[len("module.") :] if name.startswith("module.") else name for name in names}
    if any(re.match(MOBILE_BLOCK, name.replace(".net.", ".")) for name in names):
        return "mmaction2_mobilenet"
    if any(name.startswith("backbone.") for name in names):
        return "mmaction2"
    if any(name.startswith(("base_model.", "new_fc.")) for name in names):
        return "tsm"
    if any(name.startswith("features.") for name in names):
        return "online"
    if "conv1.weight" in names:
        return "torchvision"
    raise ValueError("the names are neither TSM's, mmaction2's nor torchvision's")


def canonical(name: str, spoken: str = "tsm") -> Optional[str]:
    """The common spelling of a name; None for what is dropped on purpose."""
    name = re.sub(r"^module\.", "", name)
    if spoken == "torchvision":
        if name.startswith("fc."):
            return None  # ImageNet's classifier
        name = "base_model." + name
    elif spoken == "online" and name.startswith("features."):
        name = "base_model." + name
    elif spoken.startswith("mmaction2"):
        rules = MMACTION2_MOBILE if spoken.endswith("mobilenet") else []
        name = from_mmaction2(name.replace(".net.", "."), rules + MMACTION2)
    name = re.sub(r"^(new_fc|classifier|base_model\.(fc|classifier))\.", "new_fc.", name)
    return name.replace(".net.", ".")


def from_mmaction2(name: str, rules: list) -> str:
    mobile = re.match(MOBILE_BLOCK, name)
    if mobile:
        stage, block, step, kind, leaf = mobile.groups()
        index, place = MOBILE_STAGES[int(stage)] + int(block), 3 * int(step) + (kind == "bn")
        return f"base_model.features.{index}.conv.{place}.{leaf}"
    for pattern, ours in rules:
        name = re.sub(pattern, ours, name)
    return name


def fit_shape(name: str, shape: tuple, wanted: tuple) -> Optional[str]:
    """How an array of another shape can serve: `mean_channels` for a first convolution, or None.

    A flow network starts from an RGB one: every input channel gets the mean over RGB.
    """
    first = name in ("base_model.conv1.weight", "base_model.features.0.0.weight")
    if first and shape[0] == wanted[0] and shape[2:] == wanted[2:] and shape[1] == 3:
        return "mean_channels"
    return None


def implied(name: str, spoken: str) -> Optional[float]:
    """The value of a weight that the file leaves out: mmaction2's non-local block has no bias."""
    return 0.0 if spoken.startswith("mmaction2") and name.endswith(".nl.W.0.bias") else None
