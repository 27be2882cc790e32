"""Maps parameter names of other code bases to TSM's; ours are the original's.

Known formats: the original's files (with or without `module.`, with or without the shift), its
online MobileNetV2, torchvision's ImageNet ResNets and MobileNetV2, mmaction2's TSM (its MobileNetV2
follows mmaction2's documented structure and was not checked against a file), mindspore-ai/models'
TSM (it replaces the stages of its ResNet, whose names then lose `base_model.`), ImageNet ResNets of
mindspore-ai/models and mindcv, MobileNetV2 of mindcv, and this zoo's own names.

Two names mean the same weight if `canonical_name` returns the same text for both. A canonical name
has no `.net` and, of a block with a non-local one, no `.block`, so that networks with and without
the shift can load each other's weights. Every classifier is called `new_fc`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from tsm.config import CLASSIFIER
from utils.weights.parameter_names import ParameterNames

MOBILE_BLOCK = r"^backbone\.layer(\d)\.(\d+)\.conv\.(\d)\.(conv|bn)\.(.*)$"
# Index in `features` of the first block of each stage of mmaction2's MobileNetV2.
MOBILE_STAGES = {1: 1, 2: 2, 3: 4, 4: 7, 5: 11, 6: 14, 7: 17}
# In torchvision's MobileNetV2 a convolution, its batch norm and its ReLU6 are a unit with an index
# of its own; the last convolution of a block and its batch norm are not.
TORCHVISION_MOBILE = r"^features\.(\d+)\.conv\.(\d)\.(?:([01])\.)?([a-z_]+)$"
TORCHVISION_UNIT = r"^features\.\d+\.conv\.\d\.[01]\."
MINDCV_BLOCK = r"^features\.(\d+)\.layers\."

# First and last layers of mmaction2's MobileNetV2. In its ResNets `conv1` is another layer.
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
    (r"\bconv(\d)\.(conv|bn)\.", r"\2\1."),
    (r"\.downsample\.conv\.", ".downsample.0."),
    (r"\.downsample\.bn\.", ".downsample.1."),
    (r"^backbone\.", "base_model."),
]


# Layers of MindSpore's own networks; no other code base has these names.
MINDSPORE = [
    (r"\.down_sample(_layer)?\.", ".downsample."),
    (r"\bbn(\d)d\.", r"bn\1."),
    (r"^(base_model\.)?end_point\.", r"\1fc."),
]


def rename_from_torchvision_mobilenet(name: str) -> str:
    """The name in the original code, which counts all layers of a block in one list."""
    match = re.match(TORCHVISION_MOBILE, name)
    if match is None:
        return name
    block, part, layer, leaf = match.groups()
    if layer is not None:
        index = 3 * int(part) + int(layer)
    else:  # behind one unit of three layers in the first block, behind two in the others
        index = int(part) + (2 if block == "1" else 4)
    return f"features.{block}.conv.{index}.{leaf}"


class TSMNames(ParameterNames):
    """Rules for TSM."""

    classifier = CLASSIFIER

    def detect_format(self, names: Iterable[str]) -> str:
        names = {re.sub(r"^module\.", "", name) for name in names}
        if any(re.match(MOBILE_BLOCK, name.replace(".net.", ".")) for name in names):
            return "mmaction2_mobilenet"
        if any(name.startswith("backbone.") for name in names):
            return "mmaction2"
        if any(name.startswith(("base_model.", "new_fc.")) for name in names):
            return "tsm"
        if any(re.match(TORCHVISION_UNIT, name) for name in names):
            return "torchvision_mobilenet"
        if any(re.match(MINDCV_BLOCK, name) for name in names):
            return "torchvision_of_mindcv"
        if any(name.startswith("features.") for name in names):
            return "online"
        if "conv1.weight" in names:
            return "torchvision"
        raise ValueError("the names are neither TSM's, mmaction2's nor torchvision's")

    def canonical_name(self, name: str, source_format: str = "tsm") -> Optional[str]:
        name = re.sub(r"^module\.", "", name)
        for pattern, replacement in MINDSPORE:
            name = re.sub(pattern, replacement, name)
        if source_format.startswith("torchvision"):
            if name.startswith(("fc.", "classifier.")):
                return None  # the classifier of ImageNet
            if source_format == "torchvision_mobilenet":
                name = rename_from_torchvision_mobilenet(name)
            elif source_format == "torchvision_of_mindcv":
                # In mindcv's code one list has the first layers and all blocks.
                block = re.match(MINDCV_BLOCK, name)
                if block:
                    name = f"features.{int(block[1]) - 2}.conv.{name[block.end() :]}"
                else:
                    name = re.sub(r"^features\.([01])\.", r"features.0.\1.", name)
                    name = re.sub(r"^features\.2([01])\.", r"features.18.\1.", name)
            name = "base_model." + name
        elif source_format == "online" and name.startswith("features."):
            name = "base_model." + name
        elif source_format == "tsm":
            name = re.sub(r"^layer(\d)\.", r"base_model.layer\1.", name)
        elif source_format.startswith("mmaction2"):
            name = name.replace(".net.", ".")
            mobile = re.match(MOBILE_BLOCK, name)
            if mobile:
                stage, block, step, kind, leaf = mobile.groups()
                index = MOBILE_STAGES[int(stage)] + int(block)
                name = f"base_model.features.{index}.conv.{3 * int(step) + (kind == 'bn')}.{leaf}"
            rules = MMACTION2_MOBILE if source_format.endswith("mobilenet") else []
            for pattern, replacement in [] if mobile else rules + MMACTION2:
                name = re.sub(pattern, replacement, name)
        name = re.sub(r"^(new_fc|classifier|base_model\.(fc|classifier))\.", "new_fc.", name)
        return name.replace(".net.", ".").replace(".block.", ".")

    def original_name(self, name: str, settings: Mapping[str, Any]) -> str:
        """The original's online network has no other around it, nor layers around convolutions."""
        if settings.get("online"):
            return name.removeprefix("base_model.").replace(".net.", ".")
        return name

    def fit_shape(self, name: str, shape: tuple, target_shape: tuple) -> Optional[str]:
        """How to use an array of another shape: `mean_channels` for a first convolution, or None.

        A network of flow or differences starts from RGB weights: every input channel gets the
        mean over RGB.
        """
        is_first = name in ("base_model.conv1.weight", "base_model.features.0.0.weight")
        same = shape[:1] == target_shape[:1] and shape[2:] == target_shape[2:]
        return "mean_channels" if is_first and same and shape[1] == 3 else None

    def default_value(self, name: str, source_format: str) -> Optional[float]:
        """mmaction2's non-local block has no bias."""
        left_out = source_format.startswith("mmaction2") and name.endswith(".nl.W.0.bias")
        return 0.0 if left_out else None

    def is_new(self, name: str, source_format: str) -> bool:
        """An ImageNet network has no non-local blocks."""
        return source_format == "torchvision" and ".nl." in name
