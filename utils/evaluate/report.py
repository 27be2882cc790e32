"""`eval.py --report DIR`: what an evaluation says of every video, every class, every probability.

`scores.csv` has a line for every video of the list, unreadable ones too, and every class's
probability, with nine digits: all other tables, and the metrics, follow from it.
"""

import csv
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
from mindspore import Tensor

from utils.data.annotation_file import AnnotationFile
from utils.evaluate.metrics import SumRanks
from utils.evaluate.video_inference import Head
from utils.files import explained, write_text
from utils.runtime import Runtime

BLOCK = 1024  # samples that travel between ranks at once
WORST = 10  # classes named in report.json
PAIRS = 100  # in confused_pairs.csv
LEAST = float(np.finfo(np.float32).tiny)  # a probability below it counts as that much


class Samples(NamedTuple):
    """What an evaluation looks at, by its number: names, and labels where they are known before."""

    paths: Sequence[str] = ()
    labels: Sequence[int] = ()
    classes: Sequence[str] = ()  # names; "" for none


class Outcome(NamedTuple):
    """Of n samples: who was seen, labels, what was predicted, at which place the label came.

    `probabilities` are float64 (n, classes), `confidence` (n,) those of the predicted label.
    """

    seen: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    positions: np.ndarray
    probabilities: np.ndarray
    confidence: np.ndarray


class Report:
    """Collects what this rank evaluates; nothing happens where `folder` is empty."""

    def __init__(self, folder: str, mine: Sequence, samples: Samples, rt: Runtime, softmax=False):
        """`mine` are the samples of this rank, by row; `softmax`: whether scores are raw.

        Raises ValueError where the folder cannot be written.
        """
        self.folder = Path(folder) if folder else None
        self.mine, self.samples = mine, samples
        self.softmax, self.rt = softmax, rt
        width = len(samples.classes) + 2  # the label, and 1 for seen
        self.numbers, self.rows = [], [np.zeros((0, width), np.float32)]
        if self.folder and rt.is_main_process:
            with explained(self.folder, "--report"):
                self.folder.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=self.folder).close()

    def add(self, rows: Sequence[int], scores: np.ndarray, labels: np.ndarray) -> None:
        """float32 scores (k, classes) and labels (k,) of some rows of this rank."""
        if self.folder:
            self.numbers += [self.mine[row] for row in rows]
            messages = np.column_stack([scores, labels, np.ones(len(rows))])
            self.rows.append(messages.astype(np.float32))

    def write(self, result: dict) -> None:
        """All files, from rank 0; `result` is the last line of stdout. All ranks must call it."""
        if not self.folder:
            return
        rows = over_ranks(self.numbers, np.concatenate(self.rows), len(self.samples.paths), self.rt)
        if not self.rt.is_main_process:
            return
        results = outcome(rows, self.samples.labels, self.softmax)
        names = [f"{k} {name}".strip() for k, name in enumerate(self.samples.classes)]
        write_csv(self.folder / "scores.csv", *scores_table(self.samples.paths, results, names))
        counts, table = confusion(results), bins(*of_seen(results))
        write_csv(self.folder / "confusion.csv", ["true"] + names, with_names(names, counts))
        classes = per_class(results, self.samples.classes)
        write_csv(self.folder / "classes.csv", list(classes[0]), (row.values() for row in classes))
        write_csv(self.folder / "confused_pairs.csv", *confused_pairs(counts, self.samples.classes))
        write_csv(self.folder / "calibration.csv", table.dtype.names, rounded(table))
        more = {**losses(results), "worst_classes": worst(classes)}
        with explained(self.folder, "--report"):
            write_text(self.folder / "report.json", json.dumps({**result, **more}, indent=1) + "\n")
        self.draw(counts, names, classes, table, more["ece"])

    def draw(self, counts, names, classes, table, error) -> None:
        from utils.evaluate import report_plots  # matplotlib, for those alone who want a report

        report_plots.draw_confusion(self.folder / "confusion.png", counts, names)
        shown = [(name, row["top1"]) for name, row in zip(names, classes) if row["videos"]]
        report_plots.draw_classes(self.folder / "classes.png", shown)
        report_plots.draw_calibration(self.folder / "calibration.png", table, error)


def report_videos(
    folder: str, videos: Any, file: AnnotationFile, head: Head, rt: Runtime
) -> Report:
    """The report of a `sources.EvalVideos` over the list `file`; `head` knows the classes."""
    if not folder:
        return Report("", (), Samples(), rt)
    paths = [in_list(record.path, file.root) for record in videos.records]
    labels = [record.label for record in videos.records]
    return Report(folder, videos.mine, Samples(paths, labels, head.told_names()), rt, head.raw)


def in_list(path: str, root: Path) -> str:
    """A video's path as the list has it: below the root, or absolute."""
    return path[len(f"{root}/") :] if path.startswith(f"{root}/") else path


def over_ranks(numbers: Sequence[int], rows: np.ndarray, count: int, rt: Runtime) -> np.ndarray:
    """Rows (k, width) of this rank's samples to those of all `count` samples; zeros if not seen.

    Every sample is on one rank only, so float32 sums are exact. All blocks have one shape.
    """
    result = np.zeros((-(-count // BLOCK) * BLOCK, rows.shape[1]), np.float32)
    result[np.asarray(numbers, np.int64)] = rows
    if rt.size > 1:
        add = SumRanks()
        for start in range(0, len(result), BLOCK):
            block = slice(start, start + BLOCK)
            result[block] = add(Tensor(result[block])).asnumpy()
    return result[:count]


def outcome(rows: np.ndarray, known: Sequence[int], softmax: bool) -> Outcome:
    """From (n, classes + 2): scores, label, 1 for seen; `known` are labels of those not seen."""
    scores, seen = rows[:, :-2], rows[:, -1] > 0
    labels = np.where(seen, rows[:, -2].astype(np.int64), np.asarray(known, np.int64))
    ranked = np.nan_to_num(scores, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    own = np.take_along_axis(ranked, labels[:, None], 1)
    before = np.arange(ranked.shape[1]) < labels[:, None]
    positions = (ranked > own).sum(1) + ((ranked == own) & before).sum(1)
    fractions = scores.astype(np.float64)
    if softmax:
        with np.errstate(invalid="ignore"):
            fractions = np.exp(fractions - ranked.max(1, keepdims=True))
            fractions /= fractions.sum(1, keepdims=True)
    predicted = ranked.argmax(1)
    confidence = np.take_along_axis(fractions, predicted[:, None], 1)[:, 0]
    return Outcome(seen, labels, predicted, positions, fractions, confidence)


def of_seen(result: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """Confidence of the videos that were seen, and whether they were told right."""
    return result.confidence[result.seen], result.positions[result.seen] == 0


def scores_table(paths: Sequence[str], result: Outcome, names: list[str]) -> tuple[list, Iterator]:
    """A header, and a row for every sample."""
    header = ["path", "label", "predicted", "correct", "probability", *names]

    def row(k: int) -> list:
        label = int(result.labels[k])
        if not result.seen[k]:
            return [paths[k], label, "unreadable", *[""] * (2 + len(names))]
        fractions = [f"{fraction:.9g}" for fraction in result.probabilities[k].tolist()]
        right = int(result.positions[k] == 0)
        return [paths[k], label, int(result.predicted[k]), right, fractions[label], *fractions]

    return header, map(row, range(len(paths)))


def confusion(result: Outcome) -> np.ndarray:
    """int64 (true classes, predicted classes): how many videos."""
    classes = result.probabilities.shape[1]
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (result.labels[result.seen], result.predicted[result.seen]), 1)
    return counts


def with_names(names: list[str], counts: np.ndarray) -> Iterator[list]:
    return ([name, *row] for name, row in zip(names, counts.tolist()))


def per_class(result: Outcome, names: Sequence[str]) -> list[dict]:
    """A row for every class; shares are None where it has no video."""
    rows = []
    for label, name in enumerate(names):
        positions = result.positions[result.seen & (result.labels == label)]
        fractions = [
            round(float((positions < k).mean()), 6) if len(positions) else None for k in (1, 5)
        ]
        row = {"class": label, "name": name, "videos": len(positions)}
        rows.append({**row, "top1": fractions[0], "top5": fractions[1]})
    return rows


def worst(classes: list[dict]) -> list[dict]:
    return sorted((row for row in classes if row["videos"]), key=lambda row: row["top1"])[:WORST]


def confused_pairs(counts: np.ndarray, names: Sequence[str]) -> tuple[list[str], list[list]]:
    """The commonest mistakes; the share is that of the true class's videos."""
    videos, wrong = counts.sum(1), counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:PAIRS]
    pairs = [divmod(int(k), len(counts)) for k in order if wrong.flat[k]]
    header = ["true", "predicted", "count", "share", "true_name", "predicted_name"]
    return header, [
        [a, b, int(wrong[a, b]), round(wrong[a, b] / videos[a], 6), names[a], names[b]]
        for a, b in pairs
    ]


def rounded(table: np.ndarray) -> Iterator[list]:
    """The rows of `calibration.bins`; an empty bin has neither confidence nor accuracy."""
    for low, high, videos, confidence, accuracy in table.tolist():
        fractions = [round(confidence, 6), round(accuracy, 6)] if videos else ["", ""]
        yield [round(low, 6), round(high, 6), videos, *fractions]


def losses(result: Outcome) -> dict[str, Optional[float]]:
    """The mean of -log of the label's probability, and the expected calibration error."""
    own = np.take_along_axis(result.probabilities, result.labels[:, None], 1)[result.seen]
    nll = float(-np.log(np.maximum(own, LEAST)).mean()) if len(own) else np.nan
    error = expected_error(bins(*of_seen(result)))
    return {
        name: round(value, 6) if np.isfinite(value) else None
        for name, value in (("nll", nll), ("ece", error))
    }


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Iterable]) -> None:
    """Raises ValueError, and leaves what was there before, where the disk does not take it."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with explained(path, "--report"):
            with open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as f:
                writer = csv.writer(f, lineterminator="\n")
                writer.writerow(header)
                writer.writerows(rows)
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


BINS = 15
ROW = [("from", float), ("to", float), ("videos", int), ("confidence", float), ("accuracy", float)]


def bins(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(BINS,) rows of equal parts of (0, 1]: how many videos, their mean confidence and accuracy.

    `confidence` (n,) is the probability of what was predicted, `right` (n,) whether it was true.
    An empty bin has zeros.
    """
    which = np.clip(np.ceil(np.nan_to_num(confidence) * BINS).astype(int) - 1, 0, BINS - 1)
    table = np.zeros(BINS, ROW)
    table["from"], table["to"] = np.arange(BINS) / BINS, np.arange(1, BINS + 1) / BINS
    table["videos"] = np.bincount(which, minlength=BINS)
    videos = np.maximum(table["videos"], 1)
    table["confidence"] = np.bincount(which, confidence, BINS) / videos
    table["accuracy"] = np.bincount(which, right, BINS) / videos
    return table


def expected_error(table: np.ndarray) -> float:
    """The mean over videos of the distance between confidence and accuracy of their bin."""
    gaps = np.abs(table["confidence"] - table["accuracy"])
    return float((gaps * table["videos"]).sum() / max(table["videos"].sum(), 1))
