"""Spells other people's names of X3D's weights in ours; ours are PySlowFast's.

Known: PySlowFast (and the Ascend port, whose shapes differ), pytorchvideo, and our own.
Caffe2's pickles are refused: no X3D weights were ever released that way.
"""

import re
from collections.abc import Iterable
from typing import Optional

# pytorchvideo crosses the stem's two names: its conv_t is the spatial one.
PYTORCHVIDEO = [
    (r"^model\.", ""),
    (r"^blocks\.0\.conv\.conv_t\.", "s1.pathway0_stem.conv_xy."),
    (r"^blocks\.0\.conv\.conv_xy\.", "s1.pathway0_stem.conv."),
    (r"^blocks\.0\.norm\.", "s1.pathway0_stem.bn."),
    (r"^blocks\.5\.pool\.pre_conv\.", "head.conv_5."),
    (r"^blocks\.5\.pool\.pre_norm\.", "head.conv_5_bn."),
    (r"^blocks\.5\.pool\.post_conv\.", "head.lin_5."),
    (r"^blocks\.5\.proj\.", "head.projection."),
    (r"\.branch1_conv\.", ".branch1."),
    (r"\.branch1_norm\.", ".branch1_bn."),
    (r"\.branch2\.conv_([abc])\.", r".branch2.\1."),
    (r"\.branch2\.norm_b\.0\.", ".branch2.b_bn."),
    (r"\.branch2\.norm_b\.1\.block\.0\.", ".branch2.se.fc1."),
    (r"\.branch2\.norm_b\.1\.block\.2\.", ".branch2.se.fc2."),
    (r"\.branch2\.norm_([ac])\.", r".branch2.\1_bn."),
]
STAGE = r"^blocks\.([1-4])\.res_blocks\.(\d+)\."
# pytorchvideo has no batch norm on the one shortcut that keeps its width: an identity is the same.
IDENTITY = {"gamma": (1 + 1e-5) ** 0.5, "beta": 0.0, "moving_mean": 0.0, "moving_variance": 1.0}


def dialect(names: Iterable[str]) -> str:
    """Who wrote the file. Raises ValueError."""
    names = set(names)
    if any(re.match(r"(model\.)?blocks\.\d\.", name) for name in names):
        return "pytorchvideo"
    if any("pathway0_stem" in name for name in names):
        return "slowfast"
    if "conv1_xy_w" in names:
        raise ValueError("a Caffe2 pickle; X3D was released as .pyth files of PyTorch only")
    raise ValueError("the names are neither PySlowFast's nor pytorchvideo's X3D")


def canonical(name: str, spoken: str = "slowfast") -> Optional[str]:
    """The common spelling of a name; None for what is dropped on purpose."""
    if spoken != "pytorchvideo":
        return re.sub(r"^module\.", "", name)
    for pattern, ours in PYTORCHVIDEO:
        name = re.sub(pattern, ours, name)
    return re.sub(STAGE, lambda m: f"s{int(m[1]) + 1}.pathway0_res{m[2]}.", name)


def fit_shape(name: str, shape: tuple, wanted: tuple) -> Optional[str]:
    """How an array of another shape can serve: a kernel per channel as a dense one's diagonal."""
    dense = len(shape) == 5 and shape[1] == 1 and wanted[1] == wanted[0] == shape[0]
    return "diagonal" if dense and shape[2:] == wanted[2:] else None


def implied(name: str, spoken: str) -> Optional[float]:
    """The value of a weight that the file leaves out."""
    module, _, leaf = name.rpartition(".")
    if spoken == "pytorchvideo" and module == "s2.pathway0_res0.branch1_bn":
        return IDENTITY[leaf]
    return None
