"""Evaluation report, `eval.py --report DIR`: tables and a page.

`scores.csv` has a line for every video of the list, unreadable ones too, with the probabilities of
all classes in nine digits: all other tables, and the metrics, follow from it.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from utils.evaluate import report_page
from utils.evaluate.label_report import write_label_report
from utils.evaluate.label_space import LabelSpace
from utils.evaluate.metrics import TOP5_CLASSES, ScoreTable, list_bounds
from utils.evaluate.report_page import Entry, Samples, divide, write_classes, write_csv
from utils.files import check_folder, report_write_errors
from utils.runtime import Runtime

PAIRS = 100  # in confused_pairs.csv
SCORE_COLUMNS = ("path", "label", "predicted", "correct", "probability")  # before the classes
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
            check_folder(folder, report_page.OWN, "--report")
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
    names = [f"{k} {name}".strip() for k, name in enumerate(samples.classes)]
    counts = count_confusion(predictions)
    readable = predictions.readable
    bins = compute_bins(predictions.confidence[readable], predictions.ranks[readable] == 0)
    header = [*SCORE_COLUMNS, *names]
    write_csv(folder / "scores.csv", header, list_scores(samples.paths, predictions))
    matrix = ([name, *row] for name, row in zip(names, counts.tolist()))
    write_csv(folder / "confusion.csv", ["true", *names], matrix)
    pairs = list(list_pairs(counts, samples.classes))
    write_csv(folder / "confused_pairs.csv", PAIR_COLUMNS, pairs)
    write_csv(folder / "calibration.csv", bins.dtype.names, list_bins(bins))
    wrong = list(list_wrong(samples, predictions))
    write_csv(folder / "wrong.csv", WRONG_COLUMNS, (row for _, row in wrong))
    losses = compute_losses(predictions, bins)
    mistakes = [make_entry(predictions, k, int(predictions.predicted[k])) for k, _ in wrong]
    numbers = np.flatnonzero(readable & (predictions.ranks == 0))
    order = np.argsort(predictions.confidence[numbers], kind="stable")
    unsure = numbers[order[: report_page.SHOWN]].tolist()  # of the correct ones
    hits = [make_entry(predictions, k, find_second(predictions, k)) for k in unsure]
    classes = list_classes(predictions, samples.classes, counts)
    charts = {"counts": counts, "pairs": pairs, "bins": list(list_bins(bins))}
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


def list_scores(paths: Sequence[str], predictions: Predictions) -> Iterator[list]:
    """A row of `scores.csv` for every sample."""
    for path, readable, label, predicted, rank, probs, _ in zip(paths, *predictions):
        if readable:
            texts = [f"{probability:.9g}" for probability in probs.tolist()]
            yield [path, label, predicted, int(rank == 0), texts[label], *texts]
        else:
            yield [path, label, "unreadable", *[""] * (2 + len(probs))]


WRONG_COLUMNS = ("path", "label", "predicted", "label_probability", "predicted_probability")
WRONG_COLUMNS += ("label_name", "predicted_name")


def list_wrong(samples: Samples, predictions: Predictions) -> Iterator[tuple[int, list]]:
    """(sample, row of `wrong.csv`) of every wrong prediction, the most confident first."""
    readable, labels, predicted, ranks, probabilities, confidence = predictions
    numbers = np.flatnonzero(readable & (ranks > 0))
    for k in numbers[np.argsort(-confidence[numbers], kind="stable")]:
        pair = [int(labels[k]), int(predicted[k])]
        texts = [f"{probabilities[k, label]:.9g}" for label in pair]
        names = [samples.classes[label] for label in pair]
        yield int(k), [samples.paths[k], *pair, *texts, *names]


def find_second(predictions: Predictions, sample: int) -> Optional[int]:
    """The second class of a sample, None if there is only one class."""
    order = np.argsort(-predictions.probabilities[sample], kind="stable")
    return int(order[order != predictions.predicted[sample]][0]) if len(order) > 1 else None


def make_entry(predictions: Predictions, sample: int, other: Optional[int]) -> Entry:
    """A sample of the page, with its label and another class."""
    label = int(predictions.labels[sample])
    values = predictions.probabilities[sample].round(4)
    of_other = None if other is None else float(values[other])
    return Entry(sample, label, other, float(values[label]), of_other)


def count_confusion(predictions: Predictions) -> np.ndarray:
    """Videos int64 (true classes, predicted classes)."""
    readable, labels, predicted, _, probabilities, _ = predictions
    counts = np.zeros((probabilities.shape[1],) * 2, np.int64)
    np.add.at(counts, (labels[readable], predicted[readable]), 1)
    return counts


def list_classes(predictions: Predictions, names: Sequence[str], counts: np.ndarray) -> list[dict]:
    """A row for every class; `counts` is the result of `count_confusion`.

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


PAIR_COLUMNS = ["true", "predicted", "count", "share", "true_name", "predicted_name"]


def list_pairs(counts: np.ndarray, names: Sequence[str]) -> Iterator[list]:
    """The commonest mistakes; `share` is the fraction of the true class's videos."""
    videos = counts.sum(1)
    wrong = counts - np.diag(np.diag(counts))
    for k in np.argsort(-wrong, axis=None, kind="stable")[:PAIRS]:
        a, b = divmod(int(k), len(counts))
        if wrong[a, b]:
            fraction = round(wrong[a, b] / videos[a], 6)
            yield [a, b, int(wrong[a, b]), fraction, names[a], names[b]]


def compute_losses(predictions: Predictions, bins: np.ndarray) -> dict[str, Optional[float]]:
    """The mean of -log of the label's probability, and the expected calibration error."""
    own = np.take_along_axis(predictions.probabilities, predictions.labels[:, None], 1)
    own = own[predictions.readable]
    nll = float(-np.log(np.maximum(own, MIN_PROBABILITY)).mean()) if len(own) else np.nan
    return {
        name: round(value, 6) if np.isfinite(value) else None
        for name, value in (("nll", nll), ("ece", compute_calibration_error(bins)))
    }


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


def list_bins(bins: np.ndarray) -> Iterator[list]:
    """The rows of `calibration.csv`; an empty bin has neither confidence nor accuracy."""
    for low, high, videos, confidence, accuracy in bins.tolist():
        values = [round(confidence, 6), round(accuracy, 6)] if videos else ["", ""]
        yield [round(low, 6), round(high, 6), videos, *values]


def compute_calibration_error(bins: np.ndarray) -> float:
    """The mean over videos of the distance between confidence and accuracy of their bin."""
    gaps = np.abs(bins["confidence"] - bins["accuracy"])
    return float((gaps * bins["videos"]).sum() / max(bins["videos"].sum(), 1))
