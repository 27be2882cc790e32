"""The names of pytorchvideo, for the tests and for `golden/reference.py`."""

import re

PYTORCHVIDEO = {
    "s1.pathway0_stem.conv_xy.": "blocks.0.conv.conv_t.",
    "s1.pathway0_stem.conv.": "blocks.0.conv.conv_xy.",
    "s1.pathway0_stem.bn.": "blocks.0.norm.",
    "head.conv_5.": "blocks.5.pool.pre_conv.",
    "head.conv_5_bn.": "blocks.5.pool.pre_norm.",
    "head.lin_5.": "blocks.5.pool.post_conv.",
    "head.projection.": "blocks.5.proj.",
    ".pathway0_res": ".res_blocks.",
    "branch1.": "branch1_conv.",
    "branch1_bn.": "branch1_norm.",
    "branch2.b_bn.": "branch2.norm_b.0.",
    "branch2.se.fc1.": "branch2.norm_b.1.block.0.",
    "branch2.se.fc2.": "branch2.norm_b.1.block.2.",
}


def rename_to_pytorchvideo(name: str) -> str:
    """The name in pytorchvideo of a weight of PySlowFast."""
    for ours, theirs in PYTORCHVIDEO.items():
        name = name.replace(ours, theirs)
    name = re.sub(r"branch2\.([abc])_bn\.", r"branch2.norm_\1.", name)
    name = re.sub(r"branch2\.([abc])\.", r"branch2.conv_\1.", name)
    return re.sub(r"^s([2-5])\.", lambda match: f"blocks.{int(match[1]) - 1}.", name)
