"""Maps parameter names of other code bases to MViTv2's; ours are MultiTrain's.

Known formats: MultiTrain's files, PySlowFast's, and our own. They differ only in names of layers
that the other network does not have, so only the prefix of a wrapper is removed.
"""

import re
from collections.abc import Iterable
from typing import Optional


def detect_format(names: Iterable[str]) -> str:
    """The code base that wrote the file. Raises ValueError if it is unknown."""
    names = {canonical_name(name) for name in names}
    if "patch_embed.proj.weight" not in names or "blocks.0.attn.pool_q.weight" not in names:
        raise ValueError("the names are neither MultiTrain's nor PySlowFast's MViTv2")
    return "slowfast" if "cls_token" in names else "multitrain"


def canonical_name(name: str, source_format: str = "multitrain") -> Optional[str]:
    return re.sub(r"^(module|model)\.", "", name)


def fit_shape(name: str, shape: tuple, target_shape: tuple) -> Optional[str]:
    """How an array of another shape can be used: `resize_rows` or None.

    A table of relative positions (distances, channels) is interpolated along the distances.
    """
    is_table = ".rel_pos_" in name and len(shape) == 2 and shape[1] == target_shape[1]
    return "resize_rows" if is_table and shape[0] else None


def default_value(name: str, source_format: str) -> Optional[float]:
    """No file leaves a weight out."""
    return None
