"""The report of an evaluation of samples with several labels: tables and a page.

`scores.csv` has a line for every video of the list, as that of `report.py`; a label
counts as predicted from the probability THRESHOLD on.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from utils.data.annotation_file import format_label
from utils.evaluate.report_page import SHOWN, Entry, Samples, divide, write_classes, write_csv
from utils.evaluate.several_labels import (
    THRESHOLD,
    compute_average_precisions,
    compute_binary_losses,
    encode_label_sets,
    list_label_sets,
    sigmoid,
)

LABEL_COLUMNS = ("path", "labels", "predicted", "correct")  # of scores.csv, before the classes
WRONG_COLUMNS = ("path", "labels", "predicted", "missed", "extra", "loss")


def write_label_report(
    folder: Path, samples: Samples, rows: np.ndarray, raw_scores: bool, result: dict
) -> dict:
    """Writes all files; returns what its page shows. `rows`: see `metrics.ScoreTable`.

    Raises ValueError if the folder cannot be written.
    """
    count = len(samples.classes)
    readable = rows[:, -1] > 0
    probabilities = sigmoid(rows[:, :count]) if raw_scores else rows[:, :count].astype(np.float64)
    targets = encode_label_sets(samples.labels, count)
    losses = compute_binary_losses(rows[:, :count], targets, raw_scores).mean(1)
    names = [f"{k} {name}".strip() for k, name in enumerate(samples.classes)]
    predicted = list_label_sets(probabilities >= THRESHOLD)
    scores = list_scores(samples, probabilities, predicted, readable)
    write_csv(folder / "scores.csv", [*LABEL_COLUMNS, *names], scores)
    order = [k for k in np.argsort(-losses, kind="stable").tolist() if readable[k]]
    worst = [k for k in order if predicted[k] != samples.labels[k]]
    wrong = [[*make_wrong_row(samples, k, predicted[k]), f"{losses[k]:.6g}"] for k in worst]
    write_csv(folder / "wrong.csv", WRONG_COLUMNS, wrong)
    hits = [k for k in order if predicted[k] == samples.labels[k]][:SHOWN]
    classes = list_classes(samples.classes, probabilities[readable], targets[readable])
    mistakes = [Entry(k, true=samples.labels[k], other=predicted[k]) for k in worst]
    entries = [Entry(k, true=samples.labels[k], other=None) for k in hits]
    values = {"threshold": THRESHOLD}
    return write_classes(folder, samples, result, values, classes, mistakes, entries)


def list_scores(
    samples: Samples, probabilities: np.ndarray, predicted: Sequence[tuple], readable: np.ndarray
) -> Iterator[list]:
    """A row of `scores.csv` for every sample."""
    for k, (path, labels) in enumerate(zip(samples.paths, samples.labels)):
        if readable[k]:
            texts = [f"{probability:.9g}" for probability in probabilities[k].tolist()]
            correct = int(predicted[k] == labels)
            yield [path, format_label(labels), format_label(predicted[k]), correct, *texts]
        else:
            yield [path, format_label(labels), "unreadable", *[""] * (1 + probabilities.shape[1])]


def list_classes(
    names: Sequence[str], probabilities: np.ndarray, targets: np.ndarray
) -> list[dict]:
    """A row for every class; values are None if their denominator is zero.

    `predicted` are the videos with THRESHOLD or more; precision, recall and F1 are of these.
    """
    precisions = compute_average_precisions(probabilities, targets)
    predicted = probabilities >= THRESHOLD
    hits = (predicted & targets).sum(0)
    rows = []
    for k, name in enumerate(names):
        videos = int(targets[:, k].sum())
        positives = int(predicted[:, k].sum())
        rows.append(
            {
                "class": k,
                "name": name,
                "videos": videos,
                "average_precision": round(float(precisions[k]), 6) if videos else None,
                "predicted": positives,
                "precision": divide(hits[k], positives),
                "recall": divide(hits[k], videos),
                "f1": divide(2 * hits[k], positives + videos),
            }
        )
    return rows


def make_wrong_row(samples: Samples, number: int, predicted: tuple[int, ...]) -> list:
    """The row of `wrong.csv` of a sample, without its loss."""
    labels = set(samples.labels[number])
    sets = (labels, predicted, labels.difference(predicted), set(predicted) - labels)
    return [samples.paths[number], *(format_label(tuple(sorted(part))) for part in sets)]
