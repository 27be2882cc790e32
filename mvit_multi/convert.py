"""Spells other people's names of MViTv2's weights in ours; ours are MultiTrain's.

Known: MultiTrain's files, PySlowFast's, and our own. They differ in a few names that stand for
different networks, so nothing has to be respelled but a wrapper's prefix.
"""

import re
from collections.abc import Iterable
from typing import Optional


def dialect(names: Iterable[str]) -> str:
    """Who wrote the file. Raises ValueError."""
    names = {canonical(name) for name in names}
    if "patch_embed.proj.weight" not in names or "blocks.0.attn.pool_q.weight" not in names:
        raise ValueError("the names are neither MultiTrain's nor PySlowFast's MViTv2")
    return "slowfast" if "cls_token" in names else "multitrain"


def canonical(name: str, spoken: str = "multitrain") -> Optional[str]:
    """The common spelling of a name."""
    return re.sub(r"^(module|model)\.", "", name)


def fit_shape(name: str, shape: tuple, wanted: tuple) -> Optional[str]:
    """How an array of another shape can serve: a table of distances is resized along them."""
    table = ".rel_pos_" in name and len(shape) == 2 and shape[1] == wanted[1]
    return "resize_rows" if table and shape[0] else None


def implied(name: str, spoken: str) -> Optional[float]:
    """The value of a weight that the file leaves out: there is none."""
    return None
