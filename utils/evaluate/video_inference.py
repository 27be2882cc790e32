"""What a network says to a video: views, scores, windows of a long one, and the record of it.

A room's `predict.py` has `open_source(path, cfg)`, and `build_heads(cfg)`: a `Head` for each data
set that the network knows. The numbers of frames and the views are those of the room's evaluation.
"""

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np
from mindspore import nn

from utils.data.class_names import find_class_names, read_class_names
from utils.evaluate.metrics import choose_clips_per_pass, video_scores
from utils.video.reader import FrameSource

FPS = 30.0  # of a video that does not say
LONG, WINDOW = 30.0, 10.0  # seconds: a longer video is cut into windows of so many


@dataclass(frozen=True)
class Part:
    """A part of a video, as sampling sees it: a length in frames, and frames a second."""

    first: int
    length: int
    fps: float

    def __len__(self) -> int:
        return self.length


class Head(abc.ABC):
    """The classes of one data set, and how they are looked for."""

    name = ""  # of the data set, where there are several
    names: Sequence[str] = ()  # of the classes, where they are known
    beside: Optional[Path] = None  # a file of the names that may be there
    shipped = ""  # the list in utils/labels
    classes = 0
    clips = crops = 1
    raw = True  # whether the network gives raw scores, not probabilities
    clips_per_pass = 0  # as in `video_scores`

    @abc.abstractmethod
    def numbers(self, part: Part) -> np.ndarray:
        """The frames of all clips, counted from the part's first; any shape."""

    @abc.abstractmethod
    def cut(self, frames: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The views uint8 (V, ...); `positions`, of that shape, says which frame stands where."""

    def pictures(self, views: np.ndarray) -> np.ndarray:
        """What is to be seen in the middle crop of each clip: uint8 (clips, T, H, W, 3).

        Of views (V, 3, T, H, W) that are the crops of the first clip, then of the second, ...
        """
        return views[self.crops // 2 :: self.crops].transpose(0, 2, 3, 4, 1)

    def own_names(self) -> Sequence[str]:
        """Names of the classes, without a file from the user; empty where nobody says."""
        return find_class_names(self.beside, self.shipped, self.classes)

    def told_names(self) -> list[str]:
        """A name for each class, empty where nobody says."""
        return list(self.own_names()) or [""] * self.classes

    def probabilities(self, net: nn.Cell, views: np.ndarray) -> np.ndarray:
        """Probabilities (classes,), the mean over views; of raw scores the mean's softmax."""
        scores = video_scores(net, views[None], self.clips_per_pass)[0].astype(np.float64)
        return softmax(scores) if self.raw else scores


class Seen(NamedTuple):
    """One part: views and probabilities of each head."""

    part: Part
    views: list[np.ndarray]
    probabilities: list[np.ndarray]


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def name_classes(heads: Sequence[Head], labels: str) -> None:
    """Gives the heads the names in the file `labels`, one head's after the other's, or their own.

    Raises ValueError where there are not as many as classes.
    """
    if not labels:
        for head in heads:
            head.names = head.own_names()
        return
    if not Path(labels).is_file():
        raise ValueError(f"--labels: {labels} does not exist")
    names = read_class_names(
        Path(labels), sum(head.classes for head in heads), f"--labels {labels}"
    )
    for head in heads:
        head.names, names = names[: head.classes], names[head.classes :]


def parts_of(source: FrameSource, window: Optional[float], step: Optional[float]) -> list[Part]:
    """The windows of a video, all of one length; the last one ends with it.

    Seconds; a window of 0 is the whole video, None cuts only videos that are long.
    """
    fps = source.fps or FPS
    if window is None:
        window = WINDOW if len(source) > LONG * fps else 0.0
    length = max(round(window * fps), 1)
    if window == 0 or length >= len(source):
        return [Part(0, len(source), source.fps)]
    stride = max((step or window) * fps, 1.0)
    last = len(source) - length
    firsts = [round(k * stride) for k in range(int(last / stride) + 1)]
    firsts = [first for first in firsts if first < last]
    return [Part(first, length, source.fps) for first in (*firsts, last)]


def look(
    net: nn.Cell, source: FrameSource, parts: Sequence[Part], heads: Sequence[Head]
) -> Iterator[Seen]:
    """Part after part. Only one part's frames are in memory; decoding goes forward only."""
    for head in heads:  # one number for all, so that one graph is compiled
        head.clips_per_pass = choose_clips_per_pass(1, *(each.clips * each.crops for each in heads))
    plans = [[head.numbers(part) for head in heads] for part in parts]
    needed = [
        part.first + np.unique(np.concatenate([numbers.ravel() for numbers in plan]))
        for part, plan in zip(parts, plans)
    ]
    for part, plan, wanted, frames in zip(parts, plans, needed, read_forward(source, needed)):
        views = []
        for head, numbers in zip(heads, plan):
            own, positions = np.unique(numbers, return_inverse=True)
            chosen = np.searchsorted(wanted, part.first + own)
            part_frames = frames if len(chosen) == len(frames) else frames[chosen]
            views.append(head.cut(part_frames, positions.reshape(numbers.shape)))
        yield Seen(part, views, [head.probabilities(net, v) for head, v in zip(heads, views)])


def read_forward(source: FrameSource, needed: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """The frames (n, H, W, C) of each of the ascending lists `needed`.

    What a later list shares with this one's stretch is read on the way and kept: asked for an
    earlier frame, some readers begin the video anew.
    """
    if len(needed) == 1:
        yield source.frames(needed[0])
        return
    every, held, done = np.unique(np.concatenate(needed)), {}, 0
    for numbers, later in zip(needed, [*needed[1:], np.array([np.inf])]):
        upto = int(np.searchsorted(every, numbers[-1], "right"))
        if upto > done:
            fresh, done = every[done:upto], upto
            held.update(zip(fresh.tolist(), source.frames(fresh)))
        yield np.stack([held[number] for number in numbers.tolist()])
        held = {number: frame for number, frame in held.items() if number >= later[0]}


def entries(head: Head, fractions: np.ndarray, top: int) -> list[dict]:
    """The classes of one head, the most probable first."""
    return [
        {
            **({"set": head.name} if head.name else {}),
            "label": int(label),
            "name": head.names[label] if head.names else "",
            "probability": round(float(fractions[label]), 6),
        }
        for label in np.argsort(-fractions, kind="stable")[:top]
    ]


def ranking(heads: Sequence[Head], fractions: Sequence[np.ndarray], top: int) -> dict:
    """`top`; of several heads `joint`, all classes of all sets, each set with the same weight."""
    if len(heads) == 1:
        return {"top": entries(heads[0], fractions[0], top)}
    own = {head.name: entries(head, fraction, top) for head, fraction in zip(heads, fractions)}
    parts = (entries(head, s / len(heads), top) for head, s in zip(heads, fractions))
    joint = sorted((e for each in parts for e in each), key=lambda e: -e["probability"])
    return {"joint": joint[:top], "sets": own}


def columns(heads: Sequence[Head]) -> list[str]:
    """A heading for each class of each head; those without names are numbered."""
    return [
        f"{head.name}/{name}" if head.name else name
        for head in heads
        for name in (head.names or map(str, range(head.classes)))
    ]
