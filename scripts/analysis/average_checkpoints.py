#!/usr/bin/env python3
"""Averages the weights of several checkpoints of one network, for example of the last epochs.

    python scripts/analysis/average_checkpoints.py CHECKPOINT CHECKPOINT [...] --target F.ckpt
        [--weights 1 1 2] [--overwrite]

Names, shapes and types must be equal. Weights and statistics of batch norms are averaged in
float64 and written in their type; integers are those of the last file. The last line of stdout is
one JSON object: the number of arrays and files, and the target. docs/evaluation.md says when an
average is better than its parts.
"""

import sys
from dataclasses import replace
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from typing import Optional

import numpy as np
from mindspore import Parameter, Tensor

from resnet50.class_folders import copy_run_classes
from utils import cli
from utils.files import check_target
from utils.weights import checkpoint, checkpoint_file
from utils.weights.description import read_description
from utils.weights.mindspore_checkpoint import find_padding


def main(
    checkpoints: list[Path],
    *,
    target: Path,
    weights: Optional[list[cli.NonNegativeFloat]] = None,
    overwrite: bool = False,
) -> None:
    if len(checkpoints) < 2:
        raise ValueError("CHECKPOINT: name at least two files")
    factors = np.asarray(weights or [1.0] * len(checkpoints))
    if len(factors) != len(checkpoints) or not 0 < factors.sum() < np.inf:
        raise ValueError(f"--weights: give {len(checkpoints)} numbers, with a finite sum above 0")
    if target.suffix != ".ckpt":
        raise ValueError(f"--target: {target} must end in .ckpt")
    check_target(target, checkpoints, overwrite=overwrite)
    means, padding = average(checkpoints, factors / factors.sum())
    parameters = {name: Parameter(Tensor(value), name=name) for name, value in means.items()}
    averages = checkpoint.Weights(parameters, padding)
    source = f"average of {', '.join(path.name for path in checkpoints)}"
    description = read_description(checkpoints[0])
    description = description and replace(description, metrics={}, source=source)
    checkpoint.save(target, averages, "--target", description)
    copy_run_classes(checkpoints[0].parent, target.parent)
    report = {"arrays": len(means), "files": len(checkpoints), "target": str(target)}
    print(json.dumps(report))


def average(paths: list[Path], weights: np.ndarray) -> tuple[dict[str, np.ndarray], str]:
    """The averages by name, and the padding of the networks (`checkpoint.Weights`).

    One file at a time is in memory besides the sums. Raises ValueError if the files differ in more
    than numbers, or have numbers that are not finite.
    """
    sums: dict[str, np.ndarray] = {}
    first: dict[str, tuple] = {}
    paddings = []
    for path, weight in zip(paths, weights):
        content = checkpoint_file.read_all(path)
        arrays = content.arrays
        if checkpoint_file.SAMPLER in arrays:
            raise ValueError(f"{path} is the resume file of a run; give checkpoints of epochs")
        kinds = {name: (value.shape, value.dtype) for name, value in arrays.items()}
        first = first or kinds
        paddings.append(find_padding(path, arrays, content.texts))
        different = [name for name in {**first, **kinds} if first.get(name) != kinds.get(name)]
        if different or len({*paddings} - {""}) > 1:  # empty: the file does not tell
            what = f"differs in {different[0]}" if different else "pads differently"
            raise ValueError(f"{path} is of another network than {paths[0]}: it {what}")
        for name, value in arrays.items():
            if not np.issubdtype(value.dtype, np.floating):
                sums[name] = value
            elif not np.isfinite(value).all():
                raise ValueError(f"{path}: {name} is NaN or infinite; its training has diverged")
            else:
                sums[name] = sums.get(name, 0.0) + weight * value.astype(np.float64)
    with np.errstate(over="ignore"):
        means = {name: value.astype(first[name][1]) for name, value in sums.items()}
    damaged = checkpoint.list_damaged(means)
    if damaged:
        raise ValueError(f"the average of {damaged[0]} is beyond its type {first[damaged[0]][1]}")
    return means, max(paddings)


if __name__ == "__main__":
    cli.run_command(main, __doc__)
