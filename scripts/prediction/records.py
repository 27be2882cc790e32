"""The record of a video: its best classes, with its pictures and the table of its windows."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from pathlib import Path
from typing import Optional

import numpy as np

from utils.api import Model
from utils.evaluate import predict_plots
from utils.evaluate.predict import (
    TITLE_LENGTH,
    Head,
    Window,
    WindowResult,
    list_columns,
    rank_classes,
    read_windows,
    split_into_windows,
)
from utils.files import open_replacement
from utils.messages import format_line
from utils.progress import track
from utils.video.reader import VideoError

Job = tuple[str, str]  # a video, and the name of its files


def rank_all(heads: Sequence[Head], probabilities: Sequence[np.ndarray], top: int) -> dict:
    """`top`; for several heads `sets`, and `joint`: all classes, each set with the same weight."""
    if len(heads) == 1:
        return {"top": rank_classes(heads[0], probabilities[0], top)}
    pairs = list(zip(heads, probabilities))
    joint = [entry for head, p in pairs for entry in rank_classes(head, p / len(heads), top)]
    joint.sort(key=lambda entry: -entry["probability"])
    return {
        "joint": joint[:top],
        "sets": {head.name: rank_classes(head, p, top) for head, p in pairs},
    }


class Predictor:
    """Predicts videos with one model and writes the results into `folder`.

    Records list the `top` classes; `window` and `step` are the seconds of `split_into_windows`.
    """

    def __init__(
        self,
        model: Model,
        folder: Path,
        top: int,
        window: Optional[float] = None,
        step: Optional[float] = None,
    ):
        self.model = model
        self.heads = model.heads
        self.folder = folder
        self.top = top
        self.window = window
        self.step = step

    def run_jobs(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, dict]]:
        """The record of each job; that of a broken video has an `error`."""
        for job in jobs:
            try:
                yield job, self.predict(*job)
            except VideoError as error:
                yield job, {"video": job[0], "error": str(error)}

    def predict(self, video: str, name: str) -> dict:
        """The record of one video; writes its pictures and tables."""
        with self.model.open(video) as source:
            windows = split_into_windows(source, self.window, self.step)
            best = None
            by_window = []
            parts = read_windows(source, windows, self.heads)
            results = starmap(self.model.score_window, parts)
            hidden = len(windows) == 1
            for result in track(
                results, name=name, total=len(windows), unit="windows", leave=False, hidden=hidden
            ):
                by_window.append(result.probabilities)
                if best is None or result.confidence > best.confidence:
                    best = result
            record = {"video": video, "frames": len(source), "fps": round(source.fps, 3)}
        record["views"] = ", ".join(f"{head.clips}x{head.crops}" for head in self.heads)
        by_head = [np.stack(probs) for probs in zip(*by_window)]  # (windows, classes) each
        means = [probs.mean(axis=0) for probs in by_head]
        record.update(rank_all(self.heads, means, self.top))
        record["picture"] = self.draw_preview(video, name=name, result=best, windows=len(windows))
        if len(windows) > 1:
            record.update(self.write_timeline(video, name=name, windows=windows, by_head=by_head))
        return record

    def draw_preview(self, video: str, name: str, result: WindowResult, windows: int) -> str:
        title = format_line(Path(video).name, TITLE_LENGTH)
        if windows > 1:
            start, end = result.window.span
            title += f", {start:.1f} to {end:.1f} s, the most confident of {windows} windows"
        rows = []
        for head, views, probs in zip(self.heads, result.views, result.probabilities):
            frames = head.preview_frames(views)
            times = preview_times(head, result.window, frames.shape[:2])
            entries = rank_classes(head, probs, self.top)
            rows.append(
                predict_plots.PreviewRow(
                    describe_views(head), frames=frames, entries=entries, times=times
                )
            )
        path = self.folder / f"{name}.png"
        predict_plots.draw_preview(path, title, rows)
        return str(path)

    def write_timeline(
        self, video: str, name: str, windows: list[Window], by_head: list[np.ndarray]
    ) -> dict:
        """Writes a table of all classes and a plot; returns their names and the best classes."""
        spans = [window.span for window in windows]
        table = self.folder / f"{name}.csv"
        plot = self.folder / f"{name}_timeline.png"
        with open_replacement(table, newline="") as file:
            rows = np.concatenate((spans, *by_head), axis=1)
            csv.writer(file).writerow(["start", "end", *list_columns(self.heads)])
            csv.writer(file).writerows([f"{value:.7g}" for value in row] for row in rows)
        panels = [(head.name, head.names, probs) for head, probs in zip(self.heads, by_head)]
        title = format_line(Path(video).name, TITLE_LENGTH)
        predict_plots.draw_timeline(plot, title=title, spans=np.array(spans), panels=panels)
        best = []
        for (start, end), *probs in zip(spans, *by_head):
            ranking = rank_all(self.heads, probs, 1)
            (entry,) = ranking.get("joint") or ranking["top"]
            best.append({"start": round(start, 3), "end": round(end, 3), **entry})
        return {"csv": str(table), "timeline": str(plot), "windows": best}


def preview_times(head: Head, window: Window, shape: tuple) -> Optional[np.ndarray]:
    """Seconds of the previewed frames, of `shape` (clips, T); None without a frame rate.

    If a picture stands for several frames, its time is that of the first one.
    """
    if not window.fps:
        return None
    return (window.start + head.frame_indices(window).reshape(*shape, -1)[..., 0]) / window.fps


def describe_views(head: Head) -> str:
    crops = f"the middle one of {head.crops} crops" if head.crops > 1 else "1 crop"
    clips = f"{head.clips} clips, a line each" if head.clips > 1 else "1 clip"
    views = "1 view" if head.clips * head.crops == 1 else f"{head.clips * head.crops} views"
    return f"{head.name + ': ' if head.name else ''}{views}: {clips}; {crops}"
