"""Evaluation report, `eval.py --report DIR`: tables and a page.

`scores.csv` has a line for every video of the list, unreadable ones too, with the probabilities of
all classes in nine digits: all other tables, and the metrics, follow from it. If samples have
multi-label reports, a label counts as predicted from the probability THRESHOLD on.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from utils.data.annotation_file import encode_label, format_label
from utils.evaluate.label_space import LabelSpace, sigmoid
from utils.evaluate.metrics import (
    THRESHOLD,
    TOP5_CLASSES,
    ScoreTable,
    compute_average_precisions,
    compute_binary_losses,
    list_bounds,
)
from utils.evaluate.report_page import OWN, SHOWN, Samples, divide, write_classes, write_csv
from utils.files import check_folder, report_write_errors
from utils.runtime import Runtime

PAIRS = 12  # of classes, on the page
SCORE_COLUMNS = ("path", "label", "predicted", "correct", "probability")  # before the classes
WRONG_COLUMNS = ("path", "label", "predicted", "label_probability", "predicted_probability")
WRONG_COLUMNS += ("label_name", "predicted_name")
# Multi-label
LABEL_COLUMNS = ("path", "labels", "predicted", "correct")
LABEL_WRONG_COLUMNS = ("path", "labels", "predicted", "missed", "extra", "loss")
MIN_PROBABILITY = float(np.finfo(np.float32).tiny)  # a smaller one counts as this


class Report:
    """Collects the scores of this rank, in `table`, and writes the report."""

    def __init__(
        self, folder: Path, samples: Samples, numbers: Sequence, space: LabelSpace, rt: Runtime
    ):
        """`numbers` are the samples of this rank; raises ValueError for a bad folder."""
        self.folder = folder
        self.samples = samples
        self.space = space
        self.rt = rt
        classes = len(samples.classes)
        width = classes + (classes if space.multi_label else 1) + 1
        self.table = ScoreTable(numbers, len(samples.paths), width)
        if rt.is_main_process:
            check_folder(folder, OWN, "--report")
            with report_write_errors(folder, "--report"):
                folder.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=folder).close()

    def write(self, result: dict) -> dict:
        """Writes all files, on rank 0; `result` is the last line of stdout. All ranks call it.

        Returns what the page shows; on other ranks nothing.
        """
        rows = self.table.gather(self.rt)
        if not self.rt.is_main_process:
            return {}
        write = write_label_report if self.space.multi_label else write_report
        return write(self.folder, self.samples, rows, self.space.raw_scores, result)


def write_report(
    folder: Path, samples: Samples, rows: np.ndarray, raw_scores: bool, result: dict
) -> dict:
    """Writes all files of a report; returns what its page shows. `rows`: see `metrics.ScoreTable`.

    Raises ValueError if the folder cannot be written.
    """
    readable, labels, predicted, ranks, probabilities, confidence = compute_predictions(
        rows, samples.labels, raw_scores
    )
    names = [f"{k} {name}".strip() for k, name in enumerate(samples.classes)]
    header = [*SCORE_COLUMNS, *names]
    truth = labels.tolist()
    scores = list_scores(samples.paths, truth, predicted.tolist(), probabilities, readable)
    write_csv(folder / "scores.csv", header, scores)

    counts = np.zeros((probabilities.shape[1],) * 2, np.int64)  # (true, predicted)
    np.add.at(counts, (labels[readable], predicted[readable]), 1)
    matrix = ([name, *row] for name, row in zip(names, counts.tolist()))
    write_csv(folder / "confusion.csv", ["true", *names], matrix)
    bins, ece = compute_bins(confidence[readable], ranks[readable] == 0)

    wrong = np.flatnonzero(readable & (ranks > 0))  # the most confident first
    wrong_rows = []
    mistakes = []
    for k in wrong[np.argsort(-confidence[wrong], kind="stable")].tolist():
        pair = (int(labels[k]), int(predicted[k]))
        texts = [f"{probabilities[k, label]:.9g}" for label in pair]
        wrong_rows.append([samples.paths[k], *pair, *texts, *(samples.classes[n] for n in pair)])
        mistakes.append((k, *pair))
    write_csv(folder / "wrong.csv", WRONG_COLUMNS, wrong_rows)

    correct = np.flatnonzero(readable & (ranks == 0))  # the least confident first
    hits = []
    for k in correct[np.argsort(confidence[correct], kind="stable")[:SHOWN]].tolist():
        order = np.argsort(-probabilities[k], kind="stable").tolist()
        second = next((label for label in order if label != predicted[k]), None)
        hits.append((k, int(labels[k]), second))

    # The mean of -log of the label's probability
    own = np.take_along_axis(probabilities, labels[:, None], 1)[readable]
    nll = round(float(-np.log(np.maximum(own, MIN_PROBABILITY)).mean()), 6) if len(own) else None
    losses = {"nll": nll, "ece": round(ece, 6)}

    videos = counts.sum(1).tolist()
    first = np.diag(counts).tolist()
    columns: dict[str, list] = {"top1": [*map(divide, first, videos)], "top5": [None] * len(videos)}
    if len(videos) >= TOP5_CLASSES:
        five = np.bincount(labels[readable & (ranks < 5)], minlength=len(videos))
        columns["top5"] = [*map(divide, five, videos)]
    classes = list_classes(samples.classes, videos, counts.sum(0).tolist(), first, columns)
    for row, hit_count in zip(classes, first):
        bounds = list_bounds("top1", hit_count, row["videos"])
        row.update({name: bounds.get(name) for name in ("top1_low", "top1_high")})
    charts = {"counts": counts, "pairs": list_pairs(counts), "bins": bins}
    return write_classes(
        folder, samples, result, losses, classes, mistakes, hits, probabilities, charts
    )


def compute_predictions(
    rows: np.ndarray, known_labels: Sequence[int], softmax: bool
) -> tuple[np.ndarray, ...]:
    """From rows (n, classes + 2): scores, label, 1 if readable; else `known_labels` are used.

    Returns arrays of n samples; those of unreadable ones have no meaning. They say: whether it is
    readable, its label, the predicted one, the rank of the label among the scores (0 if the
    prediction is correct), float64 (n, classes) probabilities, that of the predicted label.
    """
    scores = rows[:, :-2]
    readable = rows[:, -1] > 0
    labels = np.where(readable, rows[:, -2].astype(np.int64), np.asarray(known_labels, np.int64))
    own = np.take_along_axis(scores, labels[:, None], 1)
    before = np.arange(scores.shape[1]) < labels[:, None]
    ranks = (scores > own).sum(1) + ((scores == own) & before).sum(1)
    probabilities = scores.astype(np.float64)
    if softmax:
        probabilities = np.exp(probabilities - probabilities.max(1, keepdims=True))
        probabilities /= probabilities.sum(1, keepdims=True)
    predicted = scores.argmax(1)
    confidence = np.take_along_axis(probabilities, predicted[:, None], 1)[:, 0]
    return readable, labels, predicted, ranks, probabilities, confidence


def list_scores(
    paths: Sequence[str],
    labels: Sequence,
    predicted: Sequence,
    probabilities: np.ndarray,
    readable: np.ndarray,
) -> Iterator[list]:
    """A row of `scores.csv` for every sample; of one label, also with the label's probability."""
    for k, (path, label) in enumerate(zip(paths, labels)):
        own = [label] if isinstance(label, int) else []
        if readable[k]:
            texts = [f"{probability:.9g}" for probability in probabilities[k].tolist()]
            correct = int(predicted[k] == label)
            words = [path, format_label(label), format_label(predicted[k]), correct]
            yield [*words, *(texts[one] for one in own), *texts]
        else:
            blanks = [""] * (1 + len(own) + probabilities.shape[1])
            yield [path, format_label(label), "unreadable", *blanks]


def list_classes(
    names: Sequence[str],
    videos: Sequence[int],
    predicted: Sequence[int],
    hits: Sequence[int],
    columns: dict[str, list],
) -> list[dict]:
    """A row for every class: its `columns`, precision, recall and F1.

    `videos` are those of each class, `predicted` those predicted, `hits` both. Values are None if
    their denominator is zero. Recall equals top-1: both are the fraction of the class's videos.
    """
    both = [a + b for a, b in zip(videos, predicted)]
    columns = {
        "class": [*range(len(names))],
        "name": [*names],
        "videos": [*videos],
        **columns,
        "precision": [*map(divide, hits, predicted)],
        "recall": [*map(divide, hits, videos)],
        "f1": [divide(2 * hit, total) for hit, total in zip(hits, both)],
    }
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def list_pairs(counts: np.ndarray) -> list[list]:
    """The commonest mistakes: true and predicted class, videos, fraction of the true class."""
    videos = counts.sum(1)
    wrong = counts - np.diag(np.diag(counts))
    rows = []
    for k in np.argsort(-wrong, axis=None, kind="stable")[:PAIRS]:
        a, b = divmod(int(k), len(counts))
        if wrong[a, b]:
            rows.append([a, b, int(wrong[a, b]), round(float(wrong[a, b] / videos[a]), 6)])
    return rows


BINS = 15


def compute_bins(confidence: np.ndarray, correct: np.ndarray) -> tuple[list[list], float]:
    """Rows for BINS equal parts of the confidence (0, 1], from the values (n,) of all videos.

    Each has its ends, the number of videos, their mean confidence and their accuracy, which an
    empty one has not. Also returns the expected calibration error: the mean over videos of the
    distance between confidence and accuracy of their bin.
    """
    index = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    videos = np.bincount(index, minlength=BINS)
    means = np.bincount(index, confidence, BINS) / np.maximum(videos, 1)
    accuracies = np.bincount(index, correct, BINS) / np.maximum(videos, 1)
    rows = []
    for k, count in enumerate(videos.tolist()):
        values = [round(float(v[k]), 6) for v in (means, accuracies)] if count else ["", ""]
        rows.append([round(k / BINS, 6), round((k + 1) / BINS, 6), count, *values])
    return rows, float((np.abs(means - accuracies) * videos).sum() / max(videos.sum(), 1))


def write_label_report(
    folder: Path, samples: Samples, rows: np.ndarray, raw_scores: bool, result: dict
) -> dict:
    """Writes all files; returns what its page shows. `rows`: see `metrics.ScoreTable`.

    Raises ValueError if the folder cannot be written.
    """
    count = len(samples.classes)
    readable = rows[:, -1] > 0
    probabilities = sigmoid(rows[:, :count]) if raw_scores else rows[:, :count].astype(np.float64)
    targets = np.array([encode_label(labels, count) for labels in samples.labels], bool)
    losses = compute_binary_losses(rows[:, :count], targets, raw_scores).mean(1)
    names = [f"{k} {name}".strip() for k, name in enumerate(samples.classes)]
    positive = probabilities >= THRESHOLD
    predicted = [tuple(np.flatnonzero(row).tolist()) for row in positive]
    scores = list_scores(samples.paths, samples.labels, predicted, probabilities, readable)
    write_csv(folder / "scores.csv", [*LABEL_COLUMNS, *names], scores)
    order = [k for k in np.argsort(-losses, kind="stable").tolist() if readable[k]]
    worst = [k for k in order if predicted[k] != samples.labels[k]]
    wrong = []
    for k in worst:
        true = set(samples.labels[k])
        sets = (true, predicted[k], true.difference(predicted[k]), set(predicted[k]) - true)
        texts = [format_label(tuple(sorted(part))) for part in sets]
        wrong.append([samples.paths[k], *texts, f"{losses[k]:.6g}"])
    write_csv(folder / "wrong.csv", LABEL_WRONG_COLUMNS, wrong)
    hits = [k for k in order if predicted[k] == samples.labels[k]][:SHOWN]
    precisions = compute_average_precisions(probabilities[readable], targets[readable])
    videos = targets[readable].sum(0).tolist()
    positives = positive[readable].sum(0).tolist()
    both = (positive & targets)[readable].sum(0).tolist()
    known = [round(value, 6) if n else None for value, n in zip(precisions.tolist(), videos)]
    columns: dict[str, list] = {"average_precision": known, "predicted": positives}
    classes = list_classes(samples.classes, videos, positives, both, columns)
    mistakes = [(k, samples.labels[k], predicted[k]) for k in worst]
    entries = [(k, samples.labels[k], None) for k in hits]
    values = {"threshold": THRESHOLD}
    return write_classes(folder, samples, result, values, classes, mistakes, entries)
