"""The features of videos as jobs: each process loads the network once."""

import base64
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Literal, Optional

import numpy as np

from utils import cli
from utils.cores import count_workers
from utils.data.annotation_file import Record
from utils.data.records import open_record
from utils.predict.model import Model
from utils.predict.windows import read_ahead, read_windows
from utils.settings import VideoData
from utils.video.reader import VideoError
from utils.video.windows import Window, split_into_windows

DTYPE = "<f4"  # float32
UNLISTED = -1  # the label of a video that is not a line of a list


@dataclass(frozen=True)
class FeatureOptions:
    """What a row is: `head`, the index of the head whose views are used; options of the command."""

    head: int
    _: KW_ONLY
    per: Literal["video", "clip", "window"] = "video"
    window: Optional[cli.NonNegativeFloat] = None
    step: Optional[cli.PositiveFloat] = None


class FeatureExtractor:
    """Computes the rows of videos with one network, and decodes the next videos meanwhile."""

    def __init__(self, model: Model, options: FeatureOptions):
        self.model = model
        self.options = options
        self.head = model.heads[options.head]

    def run_jobs(self, jobs: list[Record]) -> Iterator[tuple[Record, dict]]:
        """The record of each job: `times`, `width`, `features`; or `video` and `error`."""
        workers = count_workers(self.model.cfg.data.workers)
        for job, parts in read_ahead(self.read, jobs, workers):
            try:
                yield job, self.compute(parts, job.segment.start if job.segment else 0.0)
            except VideoError as error:
                yield job, {"video": job.path, "error": str(error)}

    def read(self, job: Record) -> Iterator[tuple[Window, list[np.ndarray]]]:
        """The windows of a video with their views."""
        data = self.model.cfg.data
        is_listed = job.label != UNLISTED and isinstance(data, VideoData)
        with open_record(job, data) if is_listed else self.model.open(job.path) as source:
            seconds = self.options.window if self.options.per == "window" else 0.0
            windows = split_into_windows(source, seconds, self.options.step)
            yield from read_windows(source, windows, [self.head])

    def compute(self, parts: Iterable[tuple[Window, list[np.ndarray]]], start: float) -> dict:
        """The record of a video, or of a segment that starts at `start` seconds."""
        head = self.head
        times = []
        rows = []
        for window, (views,) in parts:
            spans = [window.span]
            values = self.model.compute_features(views)[None]  # (rows, views, C)
            if self.options.per == "clip":
                indices = head.frame_indices(window).reshape(head.clips, -1)
                limits = ((clip.min(), clip.max() + 1) for clip in indices)
                spans = [(window.find_time(low), window.find_time(high)) for low, high in limits]
                values = head.group_by_clip(values[0])
            rows.append(values.mean(axis=1, dtype=np.float64))
            is_image = window.length == 1 and not window.fps
            texts = [[f"{start + time:.3f}" for time in span] for span in spans]
            times += [["", ""]] if is_image else texts
        array = np.concatenate(rows).astype(DTYPE)
        data = base64.b64encode(array.tobytes()).decode()
        return {"times": times, "width": array.shape[1], "features": data}
