"""The policy of RandAugment, which the setting `data.rand_augment` names."""

import re
from typing import NamedTuple


class Policy(NamedTuple):
    """A RandAugment policy.

    `operators` operators are drawn for each clip, with magnitudes from
    normal(`magnitude`, `deviation`), clipped to 0 to 10.
    """

    magnitude: float
    operators: int
    deviation: float


def parse_policy(text: str) -> Policy:
    """Parses a policy like `rand-m7-n4-mstd0.5-inc1`. Raises ValueError for any other form."""
    match = re.fullmatch(r"rand-m([\d.]+)-n(\d+)(?:-mstd([\d.]+))?-inc1", text)
    if match is None:
        raise ValueError(f"data.rand_augment: {text} is not of the form rand-m7-n4-mstd0.5-inc1")
    return Policy(float(match[1]), int(match[2]), float(match[3] or 0))
