"""The order in which an Ascend completes the gradients of a step, from one dry run.

The dry run sums every gradient in a separate AllReduce. The row of that AllReduce in MindSpore's
execution order shows how much of the backward pass precedes it. A dry run measures no time:
`time_positions` takes the times from the counted operations.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from utils.distributed.gradient_timing import Backward
from utils.simulation.dry_run import CHIPS, Machine, dry_run

RANKS = 8  # of the dry run; the order is the same for any number above 1


def order_gradients(network: str, cfg: Any, chip: str) -> dict[str, float]:
    """The position in the backward pass, 0..1, at which each gradient is complete, by name.

    Raises ValueError for a chip that is no Ascend, for a step that does not compile, and if this
    machine cannot do a dry run.
    """
    if CHIPS[chip] != "Ascend":
        raise ValueError(
            f"--chip {chip}: a dry run shows the order of gradients on Ascend only; "
            "scripts/analysis/profile_backward.py measures it on a device"
        )
    cfg = replace(cfg, run=replace(cfg.run, all_reduce="none", gradient_profile=None))
    result = dry_run(network, cfg, Machine(chip, RANKS), separate_gradients=True)
    if not result.finished:
        raise ValueError(f"--chip {chip}: the train step does not compile: {result.reason}")
    return result.locate_gradients(result.details["gradients"])


def time_positions(positions: Mapping[str, float], counted: Backward, chip: str) -> Backward:
    """The step of `counted` with its gradients complete at `positions`, 0..1, by name.

    Every backward kernel takes the same time, because only the order is known. Raises ValueError if
    the dry run has other gradients than `counted`.
    """
    if set(positions) != set(counted.names):
        (name, *_) = set(positions) ^ set(counted.names)
        raise ValueError(f"--chip {chip}: {name} is trained either there or on a CPU, not on both")
    fractions = np.array([positions[name] for name in counted.names])
    ready = counted.forward + fractions * (counted.step - counted.forward)
    source = f"in the order of a dry run for {chip}, times from counted operations"
    return replace(counted, ready=np.minimum(ready, counted.step), source=source)
