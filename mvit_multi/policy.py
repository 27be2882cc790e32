"""How RandAugment is asked for."""

import re
from typing import NamedTuple


class Policy(NamedTuple):
    """`operators` drawn for a clip, at a magnitude normal(`magnitude`, `deviation`) in 0 to 10."""

    magnitude: float
    operators: int
    deviation: float


def parse_policy(text: str) -> Policy:
    """`rand-m7-n4-mstd0.5-inc1`; ValueError where it is none, or has no `inc1`."""
    found = re.fullmatch(r"rand-m([\d.]+)-n(\d+)(?:-mstd([\d.]+))?-inc1", text)
    if found is None:
        raise ValueError(f"data.rand_augment: {text} is not of the form rand-m7-n4-mstd0.5-inc1")
    return Policy(float(found[1]), int(found[2]), float(found[3] or 0))
