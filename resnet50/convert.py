"""Maps parameter names of other code bases to ResNet's; ours are torchvision's.

Known formats: torchvision (with or without `module.`), NVIDIA (`layers.0` for `layer1`),
mindspore-ai/models (`end_point`, `down_sample_layer`, `bn1d`), mindcv (`classifier`,
`down_sample`), and our own. `utils/weights/mindspore_checkpoint.py` has the padding of each.
"""

import re
from collections.abc import Iterable
from typing import Optional

from utils.weights.parameter_names import ParameterNames

RULES = [
    (r"^module\.", ""),
    (r"^(end_point|classifier)\.", "fc."),
    (r"\.(down_sample_layer|down_sample)\.", ".downsample."),
    (r"\bbn(\d)d\.", r"bn\1."),
]
# In the zoo's SE blocks that halve the image, two sequences also contain a pool, which shifts the
# indices of the layers after it. The last batch norm of the stem has another name than here.
ZOO_SE = [
    (r"^bn1\.", "bn1_2."),
    (r"^(layer[234]\.0\.downsample)\.1\.", r"\1.0."),
    (r"^(layer[234]\.0\.downsample)\.2\.", r"\1.1."),
    (r"\.e2\.0\.", ".conv2."),
    (r"\.e2\.1\.", ".bn2."),
    (r"(\.\d+)\.se_dense", r"\1.se.se_dense"),
]


class ResNetNames(ParameterNames):
    """Rules for ResNet."""

    classifier = r"^fc\."

    def detect_format(self, names: Iterable[str]) -> str:
        names = {re.sub(r"^module\.", "", name) for name in names}
        if any(name.startswith("layers.0.") for name in names):
            return "nvidia"
        if "conv1_0.weight" in names and "end_point.weight" in names:
            return "zoo_se"
        if {"conv1.weight", "conv1_0.weight"} & names and any("layer1.0." in n for n in names):
            return "torchvision"
        raise ValueError("the names are not a ResNet's")

    def canonical_name(self, name: str, source_format: str = "torchvision") -> Optional[str]:
        """The canonical name, which is torchvision's."""
        for pattern, ours in RULES:
            name = re.sub(pattern, ours, name)
        if source_format == "nvidia":
            name = re.sub(r"^layers\.(\d)\.", lambda m: f"layer{int(m[1]) + 1}.", name)
        for pattern, ours in ZOO_SE if source_format == "zoo_se" else ():
            name, count = re.subn(pattern, ours, name)
            if count:
                break
        return name
