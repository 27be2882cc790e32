"""Maps parameter names of other code bases to X3D's; ours are PySlowFast's.

Known formats: PySlowFast (and the Ascend port, whose shapes differ), pytorchvideo, zjut_mindvideo,
whose kernels are all dense (`model.depthwise_impl` dense, `model.stem_groups` false), and our own.
Caffe2's pickles are refused: no X3D weights were ever released in that format.
"""

import re
from collections.abc import Iterable
from typing import Optional

from utils.weights.parameter_names import ParameterNames

# pytorchvideo swaps the two names of the stem: its conv_t is the spatial convolution.
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
# zjut_mindvideo's units are lists: a convolution, its batch norm, its activation.
MINDVIDEO = [
    (r"\.bn2d\.", "."),
    (r"^backbone\.conv1\.0\.features\.0\.", "s1.pathway0_stem.conv_xy."),
    (r"^backbone\.conv1\.1\.features\.0\.", "s1.pathway0_stem.conv."),
    (r"^backbone\.conv1\.1\.features\.1\.", "s1.pathway0_stem.bn."),
    (r"^backbone\.conv5\.features\.0\.", "head.conv_5."),
    (r"^backbone\.conv5\.features\.1\.", "head.conv_5_bn."),
    (r"^head\.dense\.dense\.", "head.projection."),
    (r"\.down_sample\.", ".branch1."),
    (r"\.conv12\.conv1\.", ".branch2.a."),
    (r"\.conv12\.conv2\.", ".branch2.b."),
    (r"\.conv3\.", ".branch2.c."),
    (r"\.se_module\.", ".branch2.se."),
    (r"\.features\.0\.", "."),
    (r"\.features\.1\.", "_bn."),
]
MINDVIDEO_STAGE = r"^backbone\.layer([1-4])\.(\d+)\."
STAGE = r"^blocks\.([1-4])\.res_blocks\.(\d+)\."
FORMATS = {"pytorchvideo": (PYTORCHVIDEO, STAGE), "mindvideo": (MINDVIDEO, MINDVIDEO_STAGE)}
# pytorchvideo has no batch norm on the one shortcut that keeps the number of channels. A batch norm
# with these values is the identity.
IDENTITY = {"gamma": (1 + 1e-5) ** 0.5, "beta": 0.0, "moving_mean": 0.0, "moving_variance": 1.0}


class X3DNames(ParameterNames):
    """Rules for X3D."""

    classifier = r"^head\.projection\."

    def detect_format(self, names: Iterable[str]) -> str:
        names = set(names)
        if any(re.match(r"(model\.)?blocks\.\d\.", name) for name in names):
            return "pytorchvideo"
        if any("pathway0_stem" in name for name in names):
            return "slowfast"
        if any(re.match(MINDVIDEO_STAGE, name) for name in names):
            return "mindvideo"
        if "conv1_xy_w" in names:
            raise ValueError("a Caffe2 pickle; X3D was released as .pyth files of PyTorch only")
        raise ValueError("the names are neither PySlowFast's, pytorchvideo's nor mindvideo's X3D")

    def canonical_name(self, name: str, source_format: str = "slowfast") -> Optional[str]:
        rules, stage = FORMATS.get(source_format, ([(r"^module\.", "")], None))
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        if stage is not None:
            name = re.sub(stage, lambda m: f"s{int(m[1]) + 1}.pathway0_res{m[2]}.", name)
        return name

    def fit_shape(self, name: str, shape: tuple, target_shape: tuple) -> Optional[str]:
        """How an array of another shape can be used: `diagonal` or None.

        A depthwise kernel (C, 1, t, h, w) becomes the diagonal of a dense kernel (C, C, t, h, w).
        """
        depthwise = len(shape) == 5 and shape[1] == 1
        dense = depthwise and target_shape[1] == target_shape[0] == shape[0]
        return "diagonal" if dense and shape[2:] == target_shape[2:] else None

    def default_value(self, name: str, source_format: str) -> Optional[float]:
        module, _, leaf = name.rpartition(".")
        if source_format == "pytorchvideo" and module == "s2.pathway0_res0.branch1_bn":
            return IDENTITY[leaf]
        return None
