"""Evaluation report, `eval.py --report DIR`: tables and a page.

`scores.csv` has a line for every video of the list, unreadable ones too, with the probabilities of
all classes in nine digits: all other tables, and the metrics, follow from it. If samples have
several labels, a label counts as predicted from the probability THRESHOLD on.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from utils.data.annotation_file import format_label
from utils.evaluate.label_space import LabelSpace, sigmoid
from utils.evaluate.metrics import (
    THRESHOLD,
    TOP5_CLASSES,
    ScoreTable,
    compute_average_precisions,
    compute_binary_losses,
    encode_label_sets,
    list_bounds,
    list_label_sets,
)
from utils.evaluate.report_page import (
    OWN,
    SHOWN,
    Entry,
    Samples,
    divide,
    write_classes,
    write_csv,
)
from utils.files import check_folder, report_write_errors
from utils.runtime import Runtime

PAIRS = 100  # in confused_pairs.csv
SCORE_COLUMNS = ("path", "label", "predicted", "correct", "probability")  # before the classes
WRONG_COLUMNS = ("path", "label", "predicted", "label_probability", "predicted_probability")
WRONG_COLUMNS += ("label_name", "predicted_name")
PAIR_COLUMNS = ["true", "predicted", "count", "share", "true_name", "predicted_name"]
# Of samples with several labels
LABEL_COLUMNS = ("path", "labels", "predicted", "correct")
LABEL_WRONG_COLUMNS = ("path", "labels", "predicted", "missed", "extra", "loss")
MIN_PROBABILITY = float(np.finfo(np.float32).tiny)  # a smaller one counts as this


class Predictions(NamedTuple):
    """Results of n samples; those of unreadable samples have no meaning.

    `ranks` are the ranks of the labels among the scores, 0 if the prediction is correct;
    `probabilities` float64 (n, classes); `confidence` (n,) the probability of the predicted label.
    """

    readable: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    ranks: np.ndarray
    probabilities: np.ndarray
    confidence: np.ndarray


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
        raw_scores = self.space.raw_scores
        if self.space.multi_label:
            return write_label_report(self.folder, self.samples, rows, raw_scores, result)
        predictions = compute_predictions(rows, self.samples.labels, raw_scores)
        return write_report(self.folder, self.samples, predictions, result)


def write_report(folder: Path, samples: Samples, predictions: Predictions, result: dict) -> dict:
    """Writes all files of a report; returns what its page shows.

    Raises ValueError if the folder cannot be written.
    """
    readable, labels, predicted, ranks, probabilities, confidence = predictions
    names = [f"{k} {name}".strip() for k, name in enumerate(samples.classes)]
    header = [*SCORE_COLUMNS, *names]
    truth = labels.tolist()
    scores = list_scores(samples.paths, truth, predicted.tolist(), probabilities, readable)
    write_csv(folder / "scores.csv", header, scores)

    counts = np.zeros((probabilities.shape[1],) * 2, np.int64)  # (true, predicted)
    np.add.at(counts, (labels[readable], predicted[readable]), 1)
    matrix = ([name, *row] for name, row in zip(names, counts.tolist()))
    write_csv(folder / "confusion.csv", ["true", *names], matrix)
    pairs = list_pairs(counts, samples.classes)
    write_csv(folder / "confused_pairs.csv", PAIR_COLUMNS, pairs)

    bins = compute_bins(confidence[readable], ranks[readable] == 0)
    bin_rows = []  # an empty bin has neither confidence nor accuracy
    for low, high, videos, mean, accuracy in bins.tolist():
        values = [round(mean, 6), round(accuracy, 6)] if videos else ["", ""]
        bin_rows.append([round(low, 6), round(high, 6), videos, *values])
    write_csv(folder / "calibration.csv", bins.dtype.names, bin_rows)

    wrong = np.flatnonzero(readable & (ranks > 0))  # the most confident first
    wrong_rows = []
    mistakes = []
    for k in wrong[np.argsort(-confidence[wrong], kind="stable")].tolist():
        pair = (int(labels[k]), int(predicted[k]))
        texts = [f"{probabilities[k, label]:.9g}" for label in pair]
        wrong_rows.append([samples.paths[k], *pair, *texts, *(samples.classes[n] for n in pair)])
        mistakes.append(make_entry(probabilities[k], k, *pair))
    write_csv(folder / "wrong.csv", WRONG_COLUMNS, wrong_rows)

    correct = np.flatnonzero(readable & (ranks == 0))  # the least confident first
    hits = []
    for k in correct[np.argsort(confidence[correct], kind="stable")[:SHOWN]].tolist():
        order = np.argsort(-probabilities[k], kind="stable").tolist()
        second = next((label for label in order if label != predicted[k]), None)
        hits.append(make_entry(probabilities[k], k, int(labels[k]), second))

    # The mean of -log of the label's probability, and the expected calibration error
    own = np.take_along_axis(probabilities, labels[:, None], 1)[readable]
    nll = float(-np.log(np.maximum(own, MIN_PROBABILITY)).mean()) if len(own) else np.nan
    losses = {
        name: round(value, 6) if np.isfinite(value) else None
        for name, value in (("nll", nll), ("ece", compute_calibration_error(bins)))
    }
    classes = list_classes(predictions, samples.classes, counts)
    charts = {"counts": counts, "pairs": pairs, "bins": bin_rows}
    return write_classes(folder, samples, result, losses, classes, mistakes, hits, charts)


def compute_predictions(
    rows: np.ndarray, known_labels: Sequence[int], softmax: bool
) -> Predictions:
    """From rows (n, classes + 2): scores, label, 1 if readable; else `known_labels` are used."""
    scores = rows[:, :-2]
    readable = rows[:, -1] > 0
    labels = np.where(readable, rows[:, -2].astype(np.int64), np.asarray(known_labels, np.int64))
    finite = np.nan_to_num(scores, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    own = np.take_along_axis(finite, labels[:, None], 1)
    before = np.arange(finite.shape[1]) < labels[:, None]
    ranks = (finite > own).sum(1) + ((finite == own) & before).sum(1)
    probabilities = scores.astype(np.float64)
    if softmax:
        with np.errstate(invalid="ignore"):
            probabilities = np.exp(probabilities - finite.max(1, keepdims=True))
            probabilities /= probabilities.sum(1, keepdims=True)
    predicted = finite.argmax(1)
    confidence = np.take_along_axis(probabilities, predicted[:, None], 1)[:, 0]
    return Predictions(readable, labels, predicted, ranks, probabilities, confidence)


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


def make_entry(probabilities: np.ndarray, sample: int, label: int, other: Optional[int]) -> Entry:
    """A sample of the page, with its label and another class."""
    values = probabilities.round(4)
    of_other = None if other is None else float(values[other])
    return Entry(sample, label, other, float(values[label]), of_other)


def list_classes(predictions: Predictions, names: Sequence[str], counts: np.ndarray) -> list[dict]:
    """A row for every class; `counts` are the videos (true classes, predicted classes).

    Accuracies are None for a class without a video, and so are precision, recall and F1 if their
    denominator is zero. Recall equals top-1: both are the fraction of the class's videos. Top-5 is
    None if there are fewer than six classes, the bounds of top-1 if the videos are many.
    """
    rows = []
    has_top5 = len(names) >= TOP5_CLASSES
    predicted = counts.sum(0)
    for label, name in enumerate(names):
        ranks = predictions.ranks[predictions.readable & (predictions.labels == label)]
        hits = counts[label, label]
        bounds = list_bounds("top1", int(hits), len(ranks))
        rows.append(
            {
                "class": label,
                "name": name,
                "videos": len(ranks),
                "top1": divide((ranks < 1).sum(), len(ranks)),
                "top5": divide((ranks < 5).sum(), len(ranks)) if has_top5 else None,
                "precision": divide(hits, predicted[label]),
                "recall": divide(hits, len(ranks)),
                "f1": divide(2 * hits, predicted[label] + len(ranks)),
                "top1_low": bounds.get("top1_low"),
                "top1_high": bounds.get("top1_high"),
            }
        )
    return rows


def list_pairs(counts: np.ndarray, names: Sequence[str]) -> list[list]:
    """The commonest mistakes; `share` is the fraction of the true class's videos."""
    videos = counts.sum(1)
    wrong = counts - np.diag(np.diag(counts))
    rows = []
    for k in np.argsort(-wrong, axis=None, kind="stable")[:PAIRS]:
        a, b = divmod(int(k), len(counts))
        if wrong[a, b]:
            fraction = round(wrong[a, b] / videos[a], 6)
            rows.append([a, b, int(wrong[a, b]), fraction, names[a], names[b]])
    return rows


BINS = 15
BIN = [("from", float), ("to", float), ("videos", int), ("confidence", float), ("accuracy", float)]


def compute_bins(confidence: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """(BINS,) rows for equal parts of the confidence (0, 1], from the values (n,) of all videos.

    Each has the number of videos, their mean confidence and their accuracy; zeros if it is empty.
    """
    index = np.clip(np.ceil(np.nan_to_num(confidence) * BINS).astype(int) - 1, 0, BINS - 1)
    bins = np.zeros(BINS, BIN)
    bins["from"], bins["to"] = np.arange(BINS) / BINS, np.arange(1, BINS + 1) / BINS
    bins["videos"] = np.bincount(index, minlength=BINS)
    videos = np.maximum(bins["videos"], 1)
    bins["confidence"] = np.bincount(index, confidence, BINS) / videos
    bins["accuracy"] = np.bincount(index, correct, BINS) / videos
    return bins


def compute_calibration_error(bins: np.ndarray) -> float:
    """The mean over videos of the distance between confidence and accuracy of their bin."""
    gaps = np.abs(bins["confidence"] - bins["accuracy"])
    return float((gaps * bins["videos"]).sum() / max(bins["videos"].sum(), 1))


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
    classes = list_label_classes(samples.classes, probabilities[readable], targets[readable])
    mistakes = [Entry(k, true=samples.labels[k], other=predicted[k]) for k in worst]
    entries = [Entry(k, true=samples.labels[k], other=None) for k in hits]
    values = {"threshold": THRESHOLD}
    return write_classes(folder, samples, result, values, classes, mistakes, entries)


def list_label_classes(
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
