"""Export, then reload and compare: a file nobody has run again is not delivered."""

import os
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from utils.checkpoint import explained
from utils.testing import spread

TOLERANCE = 1e-4  # of the spread of the scores


def export(net: nn.Cell, shape: tuple, kind: str, target: Path) -> dict:
    """Writes `net` for float32 input of `shape`; returns what the last line of stdout says.

    Raises ValueError for a format that is not offered or a file that cannot be written, and
    RuntimeError where the reloaded file computes something else.
    """
    if kind != "mindir":
        raise ValueError(f"--format is {kind}; offered: mindir")
    target = target if target.suffix == ".mindir" else target.with_name(target.name + ".mindir")
    net.set_train(False)
    clip = Tensor(np.random.RandomState(0).standard_normal(shape).astype(np.float32))
    expected = net(clip).asnumpy()
    temporary = target.with_name(f"{target.stem}.tmp.mindir")
    with explained(target, "--target"):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()  # MindSpore's own words for a folder it cannot write are many
        ms.export(net, clip, file_name=str(temporary), file_format="MINDIR")
        os.chmod(temporary, 0o644)
    loaded = nn.GraphCell(ms.load(str(temporary)))
    difference = float(np.abs(loaded(clip).asnumpy() - expected).max())
    if difference > TOLERANCE * spread(expected):
        raise RuntimeError(f"{temporary} differs from the network by {difference}")
    os.replace(temporary, target)
    return {
        "format": kind,
        "file": str(target),
        "input": list(shape),
        "max_abs_difference": difference,
    }
