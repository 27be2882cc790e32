"""The order in which an Ascend completes the gradients of a step, from one dry run.

The dry run sums every gradient in an AllReduce of its own. The row of that AllReduce in
MindSpore's execution order shows how much of the backward pass precedes it. A dry run measures no
time: `time_positions` takes the times from the counted operations.
"""

import csv
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from utils.config import to_yaml
from utils.distributed.gradient_timing import Backward
from utils.simulation.dry_run import CHIPS, check_chip, dry_run
from utils.simulation.reading import BACKWARD

RANKS = 8  # of the dry run; the order is the same for any number above 1
# MindSpore numbers the AllReduces of gradients from 1 on, in the order of the optimizer's
# parameters; the index of all others is 0. The scope follows in the node's comments.
ALL_REDUCE = re.compile(
    r" = AllReduce\([^\n]*\bindex: I64\((\d+)\)[^#]*# Fullname with scope: \(([^)\n]+)\)"
)


def order_gradients(network: str, cfg: Any, chip: str, cache: Path) -> dict[str, float]:
    """The position in the backward pass, 0..1, at which each gradient is complete, by name.

    A position is the fraction of the backward kernels, views included, that precede the gradient's
    AllReduce. `cache` is the folder of stub libraries. Raises ValueError for a chip that is no
    Ascend, for a step that does not compile, and if this machine cannot do a dry run.
    """
    check_chip(chip)
    if CHIPS[chip] != "Ascend":
        raise ValueError(
            f"--chip {chip}: a dry run shows the order of gradients on Ascend only; "
            "scripts/analysis/profile_backward.py measures it on a device"
        )
    cfg = replace(cfg, run=replace(cfg.run, all_reduce="none", gradient_profile=None))
    with tempfile.TemporaryDirectory() as temporary:
        config, kept = Path(temporary, "config.yaml"), Path(temporary, "kept")
        config.write_text(to_yaml(cfg))
        result = dry_run(
            network, config, [], chip, cache, ranks=RANKS, keep=kept, separate_gradients=True
        )
        if not result.finished:
            raise ValueError(f"--chip {chip}: the train step does not compile: {result.reason}")
        return read_positions(kept, result.details["gradients"])


def read_positions(folder: Path, names: Sequence[str]) -> dict[str, float]:
    """The positions, 0..1, by name, from what MindSpore has saved in `folder`.

    `names` are those of the optimizer's parameters, in its order. Raises ValueError if a gradient
    has no AllReduce of its own.
    """
    indices = {}
    for file in folder.rglob("graph_build_*.ir"):
        for index, node in ALL_REDUCE.findall(file.read_text(errors="replace")):
            indices[node] = int(index)
    positions, done = {}, 0
    for node in read_nodes(folder):
        done += node.startswith(BACKWARD)
        if indices.get(node):
            positions[names[indices[node] - 1]] = done
    missing = [name for name in names if name not in positions]
    if missing:
        raise ValueError(f"the dry run shows no AllReduce of the gradient of {missing[0]}")
    return {name: positions[name] / max(done, 1) for name in names}


def read_nodes(folder: Path) -> Iterator[str]:
    """The full names of the kernels in execution order; with several ranks it is saved twice."""
    files = sorted(folder.rglob("execute_order.csv"), key=lambda file: "graphs" not in file.parts)
    csv.field_size_limit(1 << 30)  # a row names all inputs of its kernel
    for file in files[:1]:
        with open(file, newline="", errors="replace") as rows:
            for row in csv.DictReader(rows):
                yield row.get("node_name") or ""


def time_positions(positions: Mapping[str, float], counted: Backward, chip: str) -> Backward:
    """The step of `counted` with its gradients complete at `positions`, 0..1, by name.

    Every backward kernel takes the same time: only the order is known. Raises ValueError if the
    dry run has other gradients than `counted`.
    """
    if set(positions) != set(counted.names):
        (name, *_) = set(positions) ^ set(counted.names)
        raise ValueError(f"--chip {chip}: {name} is trained either there or on a CPU, not on both")
    fractions = np.array([positions[name] for name in counted.names])
    ready = counted.forward + fractions * (counted.step - counted.forward)
    source = f"in the order of a dry run for {chip}, times from counted operations"
    return replace(counted, ready=np.minimum(ready, counted.step), source=source)
