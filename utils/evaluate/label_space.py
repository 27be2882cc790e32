"""Video inference: windows of a video, views, probabilities, ranked classes.

The `labels.py` of a network defines a `LabelSpace` for each of its data sets. Frames and views are
those of the network's evaluation.
"""

import abc
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, TypeVar

import numpy as np

from utils.data.class_names import find_class_names, read_class_names
from utils.evaluate.scores import choose_clips_per_pass, video_scores
from utils.evaluate.several_labels import sigmoid
from utils.messages import escape_control, format_line
from utils.video.reader import DEFAULT_FPS, FrameReader, Timeline, find_frames, find_time

if TYPE_CHECKING:
    from utils.scoring.scorer import Scorer

Item = TypeVar("Item")
Part = TypeVar("Part")
PREDICTIONS = "predictions"  # the files of all videos, PREDICTIONS.csv and PREDICTIONS.jsonl
NONE = -1  # the label if no class has the probability of the threshold
# Seconds: a longer video is divided into windows
LONG_VIDEO = 30.0
WINDOW = 10.0
CAPTION_LENGTH = 60  # characters of a class name in a video
TITLE_LENGTH = 60  # characters of a file's name in a title
NAME_BYTES = 190  # of 255 that a file's name may have; endings and temporary names take the rest


@dataclass(frozen=True)
class Window:
    """A part of a video, in frames; `fps` is its own mean, 0 if the video has no frame rate.

    Of a variable rate, `times` are those of the whole video, and `limits` the window in seconds.
    """

    start: int
    length: int
    fps: float
    times: Optional[np.ndarray] = field(default=None, compare=False, repr=False)
    limits: Optional[tuple[float, float]] = None

    def __len__(self) -> int:
        return self.length

    @property
    def span(self) -> tuple[float, float]:
        """Start and end in seconds."""
        return self.limits or (self.find_time(0), self.find_time(self.length))

    def find_time(self, frame: Any) -> Any:
        """Seconds from the first frame of the video to a frame, or frames, of the window."""
        return find_time(self, self.start + frame)


class LabelSpace(abc.ABC):
    """The classes of one data set, and the views with which they are predicted."""

    name = ""  # of the data set, if the network has several
    names: Sequence[str] = ()  # of the classes, once `assign_class_names` has run
    names_file: Optional[Path] = None  # a file of class names, used if it exists
    builtin_names = ""  # the list in utils/labels
    run_folder: Optional[Path] = None  # of the checkpoint, where a training leaves its classes
    classes = 0
    columns = slice(None)  # of the scores of the network
    clips = crops = 1
    raw_scores = True  # whether the network returns raw scores, not probabilities
    multi_label = False  # whether a sample has any number of labels
    clips_per_pass = 0  # as in `video_scores`
    crop_settings: tuple = ()  # heads with equal ones have equal crops of a frame

    @abc.abstractmethod
    def frame_indices(self, window: Window) -> np.ndarray:
        """The frames of all clips, counted from the window's start; any shape."""

    @abc.abstractmethod
    def make_views(self, crops: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The views uint8 (V, ...) of the results of `crop_frames`.

        `positions` has the shape of `frame_indices` and holds their indices in `crops`.
        """

    def crop_frames(self, frames: np.ndarray) -> np.ndarray:
        """What the views need of frames (n, H, W, C): (n, ...). By default whole frames."""
        return frames

    def group_by_clip(self, values: np.ndarray) -> np.ndarray:
        """Values (V, ...), one for each view, as (clips, crops, ...)."""
        return values.reshape(self.clips, self.crops, *values.shape[1:])

    @property
    def middle_crop(self) -> int:
        """The index of the crop that pictures show."""
        return self.crops // 2

    def select_middle_crops(self, views: np.ndarray) -> np.ndarray:
        """The views (clips, ...) of the middle crop of each clip."""
        return self.group_by_clip(views)[:, self.middle_crop]

    def preview_frames(self, views: np.ndarray) -> np.ndarray:
        """The frames of the middle crop of each clip: uint8 (clips, T, H, W, 3).

        Views are (V, 3, T, H, W).
        """
        return self.select_middle_crops(views).transpose(0, 2, 3, 4, 1)

    def find_names(self) -> Sequence[str]:
        """Class names without a file from the user; empty if there are none."""
        return find_class_names(self.names_file, self.builtin_names, self.classes)

    def list_names(self) -> list[str]:
        """A name for each class, all empty if there are none."""
        return list(self.find_names()) or [""] * self.classes

    def name_classes(self) -> list[str]:
        """The name of each class, its number if it has none."""
        names = self.names or [""] * self.classes
        return [name or str(label) for label, name in enumerate(names)]

    def predict_probs(self, scorer: "Scorer", views: np.ndarray) -> np.ndarray:
        """Probabilities (classes,) of the mean over views."""
        result = video_scores(scorer, views[None], self.clips_per_pass, self.columns)
        return self.compute_probs(result[0].astype(np.float64))

    def compute_probs(self, scores: np.ndarray) -> np.ndarray:
        """Of raw scores their softmax, for several labels their sigmoid."""
        if not self.raw_scores:
            return scores
        return sigmoid(scores) if self.multi_label else softmax(scores)


class WindowResult(NamedTuple):
    """One window, with the views and the probabilities (classes,) of each head."""

    window: Window
    views: list[np.ndarray]
    probabilities: list[np.ndarray]

    @property
    def confidence(self) -> float:
        return max(float(probs.max()) for probs in self.probabilities)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def assign_class_names(heads: Sequence[LabelSpace], labels: str, checkpoint: str) -> None:
    """Sets `names` of the heads, from the file `labels` (head after head) or without it.

    `checkpoint` is that of the network.

    Raises ValueError if the file has another number of names than the heads have classes.
    """
    if not labels:
        for head in heads:
            head.run_folder = Path(checkpoint).parent
            head.names = head.find_names()
        return
    if not Path(labels).is_file():
        raise ValueError(f"--labels: {labels} does not exist")
    classes = sum(head.classes for head in heads)
    names = read_class_names(Path(labels), classes, f"--labels {labels}")
    for head in heads:
        head.names = names[: head.classes]
        names = names[head.classes :]


def split_into_windows(
    source: Timeline, seconds: Optional[float], step: Optional[float] = None
) -> list[Window]:
    """The windows of a video, all of one length; the last one ends with the video.

    `seconds` 0 is the whole video; None divides only long videos. `step` is the time from one start
    to the next, by default `seconds`.
    """
    fps = source.fps or DEFAULT_FPS
    if seconds is None:
        seconds = WINDOW if len(source) > LONG_VIDEO * fps else 0.0
    if source.times is not None:
        return split_by_time(source.times, seconds, step or seconds)
    length = max(round(seconds * fps), 1)
    if seconds == 0 or length >= len(source):
        return [Window(0, len(source), source.fps)]
    stride = max((step or seconds) * fps, 1.0)
    last_start = len(source) - length
    starts = [round(k * stride) for k in range(int(last_start / stride) + 1)]
    starts = [start for start in starts if start < last_start]
    return [Window(start, length, source.fps) for start in (*starts, last_start)]


def split_by_time(times: np.ndarray, seconds: float, step: float) -> list[Window]:
    """`split_into_windows` of a video of a variable rate, with its `times`.

    A window without the beginning of a frame has the frame that is shown at its start.
    """
    count = len(times) - 1
    end = float(times[-1])
    fps = count / end
    if seconds == 0 or seconds >= end:
        return [Window(0, length=count, fps=fps, times=times)]
    step = max(step, 1 / fps)
    last_start = end - seconds
    starts = [k * step for k in range(int(last_start / step) + 1)]
    windows = []
    for start in (*(start for start in starts if start < last_start), last_start):
        frames = find_frames(times, start, start + seconds)
        first = frames.start if frames else max(frames.start - 1, 0)
        length = len(frames) or 1
        fps = length / float(times[first + length] - times[first])
        limits = (start, start + seconds)
        windows.append(Window(first, length=length, fps=fps, times=times, limits=limits))
    return windows


def choose_passes(heads: Sequence[LabelSpace], device: str) -> None:
    """Sets the clips per pass of all heads to one number, so that one graph is compiled."""
    numbers_of_views = [head.clips * head.crops for head in heads]
    for head in heads:
        head.clips_per_pass = choose_clips_per_pass(1, *numbers_of_views, device=device)


def read_windows(
    source: FrameReader, windows: Sequence[Window], heads: Sequence[LabelSpace]
) -> Iterator[tuple[Window, list[np.ndarray]]]:
    """Each window with the views of each head.

    Each frame is decoded once, in order. In memory are its crops, while a window needs them.
    """
    plans = [[head.frame_indices(window) for head in heads] for window in windows]
    needed = [
        window.start + np.unique(np.concatenate([indices.ravel() for indices in plan]))
        for window, plan in zip(windows, plans)
    ]
    union = np.unique(np.concatenate(needed))
    # The first frame that this or a later window needs
    lowest = np.minimum.accumulate([numbers[0] for numbers in needed[::-1]])[::-1]
    crops: dict[int, list[np.ndarray]] = {}
    end = 0
    for window, plan, numbers, first in zip(windows, plans, needed, lowest):
        crops = {number: arrays for number, arrays in crops.items() if number >= first}
        new_end = int(np.searchsorted(union, numbers[-1], "right"))
        if new_end > end:
            crops.update(crop_numbers(source, union[end:new_end], heads))
            end = new_end
        views = []
        for index, (head, indices) in enumerate(zip(heads, plan)):
            unique, positions = np.unique(window.start + indices, return_inverse=True)
            head_crops = np.stack([crops[number][index] for number in unique.tolist()])
            views.append(head.make_views(head_crops, positions.reshape(indices.shape)))
        yield window, views


def crop_numbers(
    source: FrameReader, numbers: np.ndarray, heads: Sequence[LabelSpace]
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """(number, its crops for each head) of frames of ascending numbers."""
    coming = iter(numbers.tolist())
    for part in source.parts(numbers):
        for arrays, number in zip(zip(*crop_for_heads(part, heads)), coming):
            yield number, list(arrays)


def crop_for_heads(frames: np.ndarray, heads: Sequence[LabelSpace]) -> list[np.ndarray]:
    """`crop_frames` of each head; heads with equal `crop_settings` have the same array."""
    crops: dict[tuple, np.ndarray] = {}
    for head in heads:
        if head.crop_settings not in crops:
            crops[head.crop_settings] = head.crop_frames(frames)
    return [crops[head.crop_settings] for head in heads]


def read_ahead(
    read: Callable[[Item], Iterator[Part]], items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, Iterator[Part]]]:
    """Each item, in order, with the parts of `read(item)`; an error is raised at its part.

    `workers` threads read the first parts of the next items, and the next part of this one.
    """
    items = iter(items)
    with ThreadPoolExecutor(workers) as pool:

        def start(item: Item) -> tuple[Item, Iterator[Part], Future]:
            parts = read(item)
            return item, parts, pool.submit(next, parts, None)

        def follow(parts: Iterator[Part], part: Future) -> Iterator[Part]:
            while part.result() is not None:
                value = part.result()
                part = pool.submit(next, parts, None)
                yield value

        started = deque(map(start, islice(items, workers)))
        try:
            while started:
                item, parts, part = started.popleft()
                started.extend(map(start, islice(items, 1)))
                yield item, follow(parts, part)
        finally:
            pool.shutdown(cancel_futures=True)


def choose_classes(
    probabilities: np.ndarray, top: int, threshold: float = 0.0
) -> list[tuple[int, float]]:
    """(label, probability) of the `top` classes of at least `threshold`, the most probable first.

    If there is none: NONE with the largest probability.
    """
    best = np.argsort(-probabilities, kind="stable")[:top].tolist()
    pairs = [(label, float(probabilities[label])) for label in best]
    return [pair for pair in pairs if pair[1] >= threshold] or [(NONE, pairs[0][1])]


def rank_classes(
    head: LabelSpace, probabilities: np.ndarray, top: int, threshold: float = 0.0
) -> list[dict]:
    """The classes of `choose_classes` as entries of a record; NONE is called `none`."""
    names = {NONE: "none", **dict(enumerate(head.names))}
    return [
        {
            **({"set": head.name} if head.name else {}),
            "label": label,
            "name": names.get(label, ""),
            "probability": round(probability, 6),
        }
        for label, probability in choose_classes(probabilities, top, threshold)
    ]


def format_caption(
    heads: Sequence[LabelSpace], probabilities: Sequence[np.ndarray], threshold: float = 0.0
) -> str:
    """The best class of each head and its probability, a line each."""
    lines = []
    for head, values in zip(heads, probabilities):
        (entry,) = rank_classes(head, probabilities=values, top=1, threshold=threshold)
        name = format_line(entry["name"] or f"label {entry['label']}", CAPTION_LENGTH)
        prefix = f"{head.name}: " if head.name else ""
        lines.append(f"{prefix}{name}  {100 * entry['probability']:.1f} %")
    return "\n".join(lines)


def list_columns(heads: Sequence[LabelSpace]) -> list[str]:
    """A heading for each class of each head: its name, or its number."""
    return [
        f"{head.name}/{name}" if head.name else name
        for head in heads
        for name in head.name_classes()
    ]


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
