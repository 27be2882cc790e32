#!/usr/bin/env python3
"""Averages the scores of several evaluations of one list, for example of RGB and flow networks.

    python scripts/analysis/fuse_scores.py REPORT REPORT [...] [--weights 1 1.5]
        [--average logarithms] [--report DIR]

A REPORT is the folder that `eval.py --report` wrote. `--average probabilities` takes the weighted
mean of the probabilities; `logarithms`, the default, the mean of their logarithms. The logarithm of
a probability is the logit minus a constant of the video: for networks whose reports are a softmax
of logits (tsm, resnet50) the prediction comes from averaged logits, as in the original TSM.
A video that is unreadable in one report is unreadable in the result.

Multi-label reports are averaged likewise; there `logarithms` are the logits, of p / (1 - p).

The last line of stdout is one JSON object: top1, top5, mean_class_accuracy, loss (of several
labels map, classes, top1, loss), videos, unreadable, average, weights, and the top-1 (or mAP) of
each report. `--report` writes the files of docs/evaluation.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import csv
from typing import Literal, Optional

import numpy as np

from utils import cli
from utils.data.annotation_file import NO_LABEL, encode_label
from utils.evaluate import metrics
from utils.evaluate.metrics import Counts
from utils.evaluate.report import (
    LABEL_COLUMNS,
    MIN_PROBABILITY,
    SCORE_COLUMNS,
    write_label_report,
    write_report,
)
from utils.evaluate.report_page import OWN, Samples
from utils.files import check_folder, check_inputs
from utils.log import print_result
from utils.runtime import Runtime


def main(
    reports: list[Path],
    *,
    weights: Optional[list[cli.NonNegativeFloat]] = None,
    average: Literal["logarithms", "probabilities"] = "logarithms",
    report: Optional[Path] = None,
) -> None:
    if len(reports) < 2:
        raise ValueError("REPORT: name at least two folders of eval.py --report")
    factors = np.asarray(weights or [1.0] * len(reports))
    if len(factors) != len(reports) or not 0 < factors.sum() < np.inf:
        raise ValueError(f"--weights: give {len(reports)} numbers, with a finite sum above 0")
    if report:
        inputs = [folder / "scores.csv" for folder in reports]
        check_inputs([report / "scores.csv"], inputs, "--report")
        check_folder(report, OWN, "--report")
    read = [read_scores(folder / "scores.csv") for folder in reports]
    samples = read[0][0]
    tables = [rows for _, rows in read]
    for folder, (other, rows) in zip(reports, read):
        pairs = zip(samples.classes, other.classes)
        is_one_list = len(samples.classes) == len(other.classes)
        is_one_list &= all(one == name for one, name in pairs if one and name)
        if not is_one_list or (samples.paths, samples.labels) != (other.paths, other.labels):
            raise ValueError(f"{folder} and {reports[0]} are not of one list, in one order")
        if not np.isfinite(rows).all():
            raise ValueError(f"{folder} has scores that are not finite")

    # Scores are averaged; the other columns are of rows readable in all tables.
    classes = len(samples.classes)
    several = isinstance(samples.labels[0], tuple)
    raw = average == "logarithms"
    scores = np.stack([rows[:, :classes] for rows in tables])
    if raw:
        inverse = np.log(np.maximum(1 - scores, MIN_PROBABILITY)) if several else 0.0
        scores = np.log(np.maximum(scores, MIN_PROBABILITY)) - inverse
    fused = tables[0].copy()
    fused[:, :classes] = np.tensordot(factors / factors.sum(), scores, axes=1)
    fused[:, -1] = np.min([rows[:, -1] for rows in tables], axis=0)

    metric = "map" if several else "top1"
    values = [compute_metrics(rows, classes, several, False)[metric] for rows in tables]
    result = {
        **compute_metrics(fused, classes, several, raw),
        "unreadable": int((fused[:, -1] == 0).sum()),
        "average": average,
        "weights": factors.tolist(),
        "reports": dict(zip(map(str, reports), values)),
    }
    if report:
        write = write_label_report if several else write_report
        write(report, samples=samples, rows=fused, raw_scores=raw, result=result)
    print_result(result, Runtime())


def read_scores(path: Path) -> tuple[Samples, np.ndarray]:
    """The samples of a `scores.csv`, and its rows as `metrics.ScoreTable` has them.

    Raises ValueError if it is not such a file.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist: name a folder that eval.py --report wrote")
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        header, *lines = csv.reader(file) or [[]]
    several = tuple(header[: len(LABEL_COLUMNS)]) == LABEL_COLUMNS
    columns = LABEL_COLUMNS if several else SCORE_COLUMNS
    width = len(columns)
    try:
        if tuple(header[:width]) != columns or not lines:
            raise ValueError("no table of scores")
        classes = [name.partition(" ")[2] for name in header[width:]]
        texts = ["" if line[1] == NO_LABEL else line[1] for line in lines]
        labels = [tuple(map(int, text.split(","))) if text else () for text in texts]
        labels = labels if several else [label for (label,) in labels]
        samples = Samples([line[0] for line in lines], labels, classes)
        targets = np.array([encode_label(x, len(classes)) if several else (x,) for x in labels])
        rows = np.zeros((len(lines), len(classes) + targets.shape[1] + 1))
        for row, line, target in zip(rows, lines, targets):
            if line[2] != "unreadable":
                row[:] = [*map(float, line[width:]), *target, 1]
    except (IndexError, ValueError):
        raise ValueError(f"{path} is not a scores.csv that eval.py --report wrote") from None
    return samples, rows


def compute_metrics(
    rows: np.ndarray, classes: int, several: bool, raw_scores: bool
) -> dict[str, Optional[float]]:
    """The metrics of the readable rows: scores of the classes, label or labels, a mark."""
    readable = rows[rows[:, -1] > 0]
    scores = readable[:, :classes]
    if several:
        return metrics.compute_metrics(scores, readable[:, classes:-1], raw_scores)
    counts = Counts(classes, raw_scores)
    counts.add(scores, readable[:, -2].astype(np.int64))
    return counts.accuracies()


if __name__ == "__main__":
    cli.run_command(main, __doc__)
