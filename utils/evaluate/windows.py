"""Reads the views of windows: each frame once, in order, and the next videos ahead."""

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Callable, TypeVar

import numpy as np

from utils.evaluate.label_space import LabelSpace
from utils.evaluate.scorer import choose_clips_per_pass
from utils.log import log
from utils.video.reader import FrameReader
from utils.video.windows import Window

SHORT = 0.8  # of the trained length
warn_once = functools.cache(log.warning)
Item = TypeVar("Item")
Part = TypeVar("Part")


def choose_passes(heads: Sequence[LabelSpace], device: str) -> None:
    """Sets the clips per pass of all heads to one number, so that one graph is compiled."""
    numbers_of_views = [head.clips * head.crops for head in heads]
    for head in heads:
        head.clips_per_pass = choose_clips_per_pass(1, *numbers_of_views, device=device)


def warn_of_short_window(window: Window, heads: Sequence[LabelSpace]) -> None:
    """Logs a line, once, if windows like this one are much shorter than a trained clip."""
    start, end = window.span
    length = end - start
    trained = max(head.trained_seconds for head in heads)
    if length < SHORT * trained:
        warn_once(
            f"a window of {length:.3g} s is shorter than the videos of the training: set a window "
            f"of {trained:.3g} s; scores of shorter ones are often wrong"
        )


def read_windows(
    source: FrameReader, windows: Sequence[Window], heads: Sequence[LabelSpace]
) -> Iterator[tuple[Window, list[np.ndarray]]]:
    """Each window with the views of each head.

    Each frame is decoded once, in order. In memory are its crops, while a window needs them.
    """
    if len(windows) > 1:
        warn_of_short_window(windows[0], heads)
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
            coming = iter(union[end:new_end].tolist())
            for part in source.parts(union[end:new_end]):
                for arrays, number in zip(zip(*crop_for_heads(part, heads)), coming):
                    crops[number] = list(arrays)
            end = new_end
        views = []
        for index, (head, indices) in enumerate(zip(heads, plan)):
            unique, positions = np.unique(window.start + indices, return_inverse=True)
            head_crops = np.stack([crops[number][index] for number in unique.tolist()])
            views.append(head.make_views(head_crops, positions.reshape(indices.shape)))
        yield window, views


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

        def follow(parts: Iterator[Part], part: Future) -> Iterator[Part]:
            while part.result() is not None:
                value = part.result()
                part = pool.submit(next, parts, None)
                yield value

        started: deque[tuple[Item, Iterator[Part], Future]] = deque()
        try:
            while True:
                for item in islice(items, workers + 1 - len(started)):
                    parts = read(item)
                    started.append((item, parts, pool.submit(next, parts, None)))
                if not started:
                    return
                item, parts, part = started.popleft()
                yield item, follow(parts, part)
        finally:
            pool.shutdown(cancel_futures=True)
