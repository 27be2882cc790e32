#!/usr/bin/env python3
"""Compares the scores of another program with ours, of the same videos in the same order.

    python scripts/analysis/compare_scores.py OURS THEIRS [--raw] [--tolerance 0.001]
        [--worst 5]

OURS and THEIRS are each one of: a folder that `eval.py --report` wrote, or its scores.csv; a .csv
with a video and its scores in every line; a .json {video: scores}; a .npy (videos, classes), with
the videos in the lines of a .txt of the same name; a .npz with `scores` and `paths`. A .npy without
.txt, and a .npz without `paths`, are compared row by row.
`--raw` makes probabilities of the raw scores of THEIRS, as a report has them: by softmax, or by
sigmoid if OURS is a report of several labels a video.

Lists that differ are an error. Videos that a report calls unreadable are not compared. The last
line of stdout is one JSON object: videos, unreadable, top1_agreement, max_abs_difference,
mean_abs_difference, tolerance, beyond (the number of videos beyond the tolerance), first (of
these), worst. The exit status is 1 if a video is beyond the tolerance; NaN always is.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

from typing import Any, Optional

import numpy as np
from scipy.special import softmax

from scripts.analysis.score_files import find_difference, read_any_scores
from utils import cli
from utils.evaluate.several_labels import sigmoid
from utils.log import log, print_result
from utils.runtime import Runtime


def main(
    ours: Path,
    theirs: Path,
    *,
    raw: bool = False,
    tolerance: cli.NonNegativeFloat = 1e-3,
    worst: cli.PositiveInt = 5,
) -> int:
    own = read_any_scores(ours)
    other = read_any_scores(theirs)
    difference = find_difference(own.samples, other.samples)
    if not difference and len(own.values) != len(other.values):
        difference = f"{len(other.values)} rows instead of {len(own.values)}"
    if difference:
        raise ValueError(f"{theirs} and {ours} are not of one list: {difference}")
    readable = own.readable & other.readable
    if not readable.any():
        raise ValueError(f"{theirs} and {ours}: no video has scores in both")
    count = len(readable)
    names = own.samples.paths or other.samples.paths or [f"row {k + 1}" for k in range(count)]
    names = [name for name, is_readable in zip(names, readable) if is_readable]
    own_scores = own.values[readable]
    scores = other.values[readable]
    several = any(isinstance(label, tuple) for label in own.samples.labels)
    if raw:
        with np.errstate(invalid="ignore"):  # infinite ones
            scores = sigmoid(scores) if several else softmax(scores, axis=1)
    # The largest of each video; infinite if one is not a number.
    differences = np.nan_to_num(np.abs(own_scores - scores), nan=np.inf, posinf=np.inf).max(1)
    is_finite = bool(np.isfinite(scores).all())
    if is_finite and are_probabilities(own_scores) and not are_probabilities(scores):
        log.warning("%s has no probabilities and %s has: is it --raw?", theirs, ours)

    def describe(video: int) -> dict[str, Any]:
        best = {"ours": int(own_scores[video].argmax()), "theirs": int(scores[video].argmax())}
        return {"path": names[video], "difference": to_json(differences[video]), **best}

    beyond = np.flatnonzero(differences > tolerance)
    order = np.argsort(-differences, kind="stable")[:worst]
    agreement = own_scores.argmax(1) == scores.argmax(1)
    result = {
        "videos": len(names),
        "unreadable": count - len(names),
        "top1_agreement": float(agreement.mean()),
        "max_abs_difference": to_json(differences.max()),
        "mean_abs_difference": to_json(np.abs(own_scores - scores).mean()),
        "tolerance": tolerance,
        "beyond": len(beyond),
        "first": describe(int(beyond[0])) if len(beyond) else None,
        "worst": [describe(int(video)) for video in order],
    }
    print_result(result, Runtime())
    return int(len(beyond) > 0)


def are_probabilities(scores: np.ndarray) -> bool:
    return bool((scores >= 0).all() and np.allclose(scores.sum(1), 1, atol=1e-2))


def to_json(value: np.floating) -> Optional[float]:
    """The number to six digits; None for infinity and NaN, which JSON lacks."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


if __name__ == "__main__":
    cli.run_command(main, __doc__)
