"""The classes of a video, ranked once: for Python, records, captions, tables and pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from utils.evaluate.label_space import LabelSpace
from utils.messages import escape_control, format_line
from utils.video.windows import Window

PREDICTIONS = "predictions"  # the files of all videos, PREDICTIONS.csv and PREDICTIONS.jsonl
NONE = -1  # the label if no class has the probability of the threshold
DIGITS = 6  # of a probability in a record
CAPTION_LENGTH = 60  # characters of a class name in a video
TITLE_LENGTH = 60  # characters of a file's name in a title
NAME_BYTES = 190  # of 255 that a file's name may have; endings and temporary names take the rest


class WindowResult(NamedTuple):
    """One window, with the views and the probabilities (classes,) of each head."""

    window: Window
    views: list[np.ndarray]
    probabilities: list[np.ndarray]


@dataclass(eq=False, repr=False)
class Prediction:
    """The best classes of a video, by the mean of the probabilities of its windows.

    `windows` (n, 2) are their starts and ends in seconds, `probabilities` has an array (n, classes)
    for each head, and `mean` (classes,). Classes of less than `threshold` are left out; if none
    remains, the class is `none`.
    """

    heads: Sequence[LabelSpace]
    windows: Any
    probabilities: Sequence[np.ndarray]
    threshold: float = 0.0

    def __post_init__(self) -> None:
        self.windows = np.array(self.windows)
        self.mean = [values.mean(axis=0) for values in self.probabilities]

    def top(self, count: int) -> Any:
        """The names and probabilities of `count` classes; of several heads {head: these}.

        A class without a name is its number.
        """
        rankings = [
            [(entry["name"] or str(entry["label"]), entry["probability"]) for entry in entries]
            for entries in self.rank(count)
        ]
        return name_values(self.heads, rankings)

    def rank(self, count: int) -> list[list[dict]]:
        """The entries of `rank_classes` for each head."""
        pairs = zip(self.heads, self.mean)
        return [rank_classes(head, values, count, self.threshold) for head, values in pairs]

    def describe(self, count: int) -> dict:
        """For a record: `top`; of several heads `sets`, and `joint`, all with the same weight.

        In `joint`, classes of less than `threshold` in their own set are left out.
        """
        rankings = self.rank(count)
        joint = []
        for entries in rankings:
            for entry in entries:
                share = entry["probability"] / len(rankings)
                joint.append({**entry, "probability": round(share, DIGITS)})
                entry["probability"] = round(entry["probability"], DIGITS)
        if len(rankings) == 1:
            return {"top": rankings[0]}
        joint.sort(key=lambda entry: (entry["label"] == NONE, -entry["probability"]))
        classes = sum(entry["label"] != NONE for entry in joint)
        sets = {head.name: entries for head, entries in zip(self.heads, rankings)}
        return {"joint": joint[: min(count, max(classes, 1))], "sets": sets}

    @property
    def best(self) -> dict:
        """The first entry of `describe`."""
        (entry,) = next(iter(self.describe(1).values()))
        return entry

    @property
    def caption(self) -> str:
        """The best class of each head and its probability, a line each."""
        lines = []
        for head, (entry,) in zip(self.heads, self.rank(1)):
            name = format_line(entry["name"] or f"label {entry['label']}", CAPTION_LENGTH)
            prefix = f"{head.name}: " if head.name else ""
            lines.append(f"{prefix}{name}  {100 * entry['probability']:.1f} %")
        return "\n".join(lines)

    def select(self, number: int) -> "Prediction":
        """The prediction of one window."""
        window = slice(number, number + 1)
        parts = [values[window] for values in self.probabilities]
        return Prediction(self.heads, self.windows[window], parts, self.threshold)


class RankedClasses(Prediction, list):  # type: ignore[type-arg]
    """A prediction that is also the list of `top`."""


class RankedSets(Prediction, dict):  # type: ignore[type-arg]
    """A prediction that is also the dictionary of `top`, for a network of several data sets."""


def rank_classes(
    head: LabelSpace, probabilities: np.ndarray, top: int, threshold: float = 0.0
) -> list[dict]:
    """The entries of the `top` classes of at least `threshold`, the most probable first.

    If there is none: the class `none`, label NONE, with the largest probability.
    """
    best = np.argsort(-probabilities, kind="stable")[:top].tolist()
    pairs = [(label, float(probabilities[label])) for label in best]
    pairs = [pair for pair in pairs if pair[1] >= threshold] or [(NONE, pairs[0][1])]
    names = {NONE: "none", **dict(enumerate(head.names))}
    return [
        {
            **({"set": head.name} if head.name else {}),
            "label": label,
            "name": names.get(label, ""),
            "probability": probability,
        }
        for label, probability in pairs
    ]


def name_values(heads: Sequence[LabelSpace], values: Sequence) -> Any:
    """The value of the only head; of several {name of the head: value}."""
    return values[0] if len(heads) == 1 else {h.name: v for h, v in zip(heads, values)}


def make_file_names(videos: list[str]) -> list[str]:
    """A file name for each video: its own, with a number if it is taken.

    Characters that are no text are escaped; names that are too long for a file are cut.
    """
    names: dict[str, None] = {}  # a set that keeps the order
    for video in videos:
        escaped = escape_control(Path(video).stem).encode()
        count = 1
        name = stem = escaped[:NAME_BYTES].decode(errors="ignore")
        while name in names or name == PREDICTIONS:
            count += 1
            name = f"{stem}_{count}"
        names[name] = None
    return list(names)
