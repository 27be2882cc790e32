"""The record of a video: its best classes, with its pictures and the table of its windows."""

import contextlib
import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import numpy as np

from scripts.prediction import plots
from utils import cli
from utils.evaluate.label_space import LabelSpace
from utils.files import open_replacement
from utils.messages import format_line
from utils.predict.model import Model
from utils.predict.prediction import (
    TITLE_LENGTH,
    Prediction,
    WindowResult,
    list_columns,
    rank_classes,
)
from utils.predict.windows import read_windows
from utils.progress import track
from utils.video.reader import DEFAULT_FPS, FrameReader, VideoError, find_time
from utils.video.windows import Window, split_into_windows
from utils.video.writer import CaptionedVideo

if TYPE_CHECKING:
    from utils.predict.cam import Overlay

Job = tuple[str, str]  # a video, and the name of its files


@dataclass(frozen=True)
class PredictOptions:
    """What `Predictor` writes into `folder`; the others are options of the command.

    Records list the `top` classes of at least `threshold`; `window` and `step` are the seconds of
    `split_into_windows`. `save` is an mp4 file for one video with its classes drawn in. `cam` draws
    heat maps too, of the most probable class or of `cam_class`.
    """

    folder: Path
    _: KW_ONLY
    top: cli.PositiveInt = 5
    window: Optional[cli.NonNegativeFloat] = None
    step: Optional[cli.PositiveFloat] = None
    threshold: cli.Probability = 0.0
    save: Optional[Path] = None
    cam: bool = False
    cam_class: Optional[cli.NonNegativeInt] = None


class Predictor:
    """Predicts videos with one model."""

    def __init__(self, model: Model, options: PredictOptions):
        self.model = model
        self.heads = model.heads
        self.options = options
        self.cam = None
        if options.cam:
            from utils.predict import cam

            self.cam = cam.GradCam(model, options.cam_class)

    def run_jobs(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, dict]]:
        """The record of each job; that of a broken video has an `error`."""
        for job in jobs:
            try:
                yield job, self.predict(*job)
            except VideoError as error:
                yield job, {"video": job[0], "error": str(error)}

    def predict(self, video: str, name: str) -> dict:
        """The record of one video; writes its pictures and tables."""
        top = self.options.top
        with self.model.open(video) as source:
            windows = split_into_windows(source, self.options.window, self.options.step)
            parts = track(
                read_windows(source, windows, self.heads),
                name=name,
                total=len(windows),
                unit="windows",
                leave=False,
                hidden=len(windows) == 1,
            )
            prediction, best = self.model.score_windows(parts, top, self.options.threshold)
            record = {"video": video, "frames": len(source), "fps": round(source.fps, 3)}
            if self.options.save:
                save_video(self.options.save, source, prediction)
                record["saved"] = str(self.options.save)
        record["views"] = ", ".join(f"{head.clips}x{head.crops}" for head in self.heads)
        record.update(prediction.describe(top))
        title = describe_window(video, best.window, len(windows))
        record["picture"] = self.draw_preview(f"{name}.png", title=title, result=best)
        if self.cam is not None:
            record["cam"] = self.draw_heat_maps(f"{name}_cam", title, best)
        if len(windows) > 1:
            record.update(self.write_timeline(video, name=name, prediction=prediction))
        return record

    def draw_preview(
        self, file: str, title: str, result: WindowResult, overlays: Sequence["Overlay"] = ()
    ) -> str:
        """Draws the frames that the network read, or `overlays`, one for each head."""
        rows = []
        for k, head in enumerate(self.heads):
            frames = head.preview_frames(result.views[k])
            times = preview_times(head, result.window, frames.shape[:2])
            probs = result.probabilities[k]
            entries = rank_classes(
                head, probabilities=probs, top=self.options.top, threshold=self.options.threshold
            )
            caption = describe_views(head)
            if overlays:
                frames = overlays[k].frames
                label = overlays[k].label
                name = plots.format_class(head.name_classes()[label], label)
                caption = f"{caption}; yellow: what speaks for {name}"
            row = plots.PreviewRow(caption, frames=frames, entries=entries, times=times)
            rows.append(row)
        path = self.options.folder / file
        plots.draw_preview(path, title, rows)
        return str(path)

    def draw_heat_maps(self, name: str, title: str, result: WindowResult) -> list[str]:
        """Draws the heat maps of all heads as a picture, and as a video each; returns the files."""
        from utils.predict.cam import find_rate, write_clips

        results = enumerate(zip(result.views, result.probabilities))
        overlays = [self.cam.overlay(views, k, probs) for k, (views, probs) in results]
        paths = [self.draw_preview(f"{name}.png", title=title, result=result, overlays=overlays)]
        for head, (frames, _) in zip(self.heads, overlays):
            if frames.shape[1] > 1:
                path = self.options.folder / f"{name}{'_' if head.name else ''}{head.name}.mp4"
                write_clips(path, frames, find_rate(head, result.window, frames.shape[1]))
                paths.append(str(path))
        return paths

    def write_timeline(self, video: str, name: str, prediction: Prediction) -> dict:
        """Writes a table of all classes and a plot; returns their names and the best classes."""
        spans = prediction.windows
        by_head = prediction.probabilities
        table = self.options.folder / f"{name}.csv"
        plot = self.options.folder / f"{name}_timeline.png"
        with open_replacement(table, newline="") as file:
            rows = np.concatenate((spans, *by_head), axis=1)
            csv.writer(file).writerow(["start", "end", *list_columns(self.heads)])
            csv.writer(file).writerows([f"{value:.7g}" for value in row] for row in rows)
        panels = [(head.name, head.names, probs) for head, probs in zip(self.heads, by_head)]
        title = format_line(Path(video).name, TITLE_LENGTH)
        plots.draw_timeline(plot, title=title, spans=spans, panels=panels)
        best = []
        for number, (start, end) in enumerate(spans.round(3).tolist()):
            best.append({"start": start, "end": end, **prediction.select(number).best})
        return {"csv": str(table), "timeline": str(plot), "windows": best}


def save_video(path: Path, source: FrameReader, prediction: Prediction) -> None:
    """All frames, with the best class of the window whose middle is nearest drawn in."""
    middles = prediction.windows.mean(axis=1)
    captions = [prediction.select(number).caption for number in range(len(middles))]
    fps = source.fps or DEFAULT_FPS
    with contextlib.closing(CaptionedVideo(path, fps)) as video:
        for number, pixels in enumerate(source.in_order()):
            seconds = float(find_time(source, number))
            nearest = np.abs(middles - seconds).argmin()
            video.write(seconds * fps, pixels, captions[nearest])


def describe_window(video: str, window: Window, windows: int) -> str:
    """The title of the pictures of the most confident one of all windows."""
    title = format_line(Path(video).name, TITLE_LENGTH)
    if windows == 1:
        return title
    start, end = window.span
    return f"{title}, {start:.1f} to {end:.1f} s, the most confident of {windows} windows"


def preview_times(head: LabelSpace, window: Window, shape: tuple) -> Optional[np.ndarray]:
    """Seconds of the previewed frames, of `shape` (clips, T); None without a frame rate.

    If a picture stands for several frames, its time is that of the first one.
    """
    if not window.fps:
        return None
    return window.find_time(head.frame_indices(window).reshape(*shape, -1)[..., 0])


def describe_views(head: LabelSpace) -> str:
    crops = f"the middle one of {head.crops} crops" if head.crops > 1 else "1 crop"
    clips = f"{head.clips} clips, a line each" if head.clips > 1 else "1 clip"
    views = "1 view" if head.clips * head.crops == 1 else f"{head.clips * head.crops} views"
    return f"{head.name + ': ' if head.name else ''}{views}: {clips}; {crops}"
