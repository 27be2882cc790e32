"""Rows of annotated videos: what the networks that read videos share."""

import abc
import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from utils.data.annotation_file import AnnotationFile, describe_list
from utils.data.rows import EvalRows, FileRows, TrainRows
from utils.video.reader import Clip, FrameReader, Timeline, VideoError

MEASURED = 16  # videos, for the length of a clip


class VideoRows(FileRows):
    """Rows that open videos."""

    @contextlib.contextmanager
    def open_video(self, record: Any) -> Iterator[FrameReader]:
        """Opens the video of a record, and closes it at the end."""
        with record.open(self.cfg.data) as video:
            yield video
            self.warnings.add(video)


class TrainVideos(VideoRows, TrainRows):
    """Training rows of videos; the annotation file is that of a network for one data set."""

    def list_flip_settings(self) -> list[tuple[AnnotationFile, Any]]:
        return [(describe_list(self.cfg, "train"), self.data)]

    @abc.abstractmethod
    def choose_frames(self, video: Timeline, record: Any, rng: np.random.RandomState) -> np.ndarray:
        """The frame numbers of a clip."""

    def measure_clips(self) -> float:
        """The median of MEASURED readable videos, at equal distances in the list.

        A clip that spans more than half of its video stands for the whole.
        """
        seconds = []
        count = min(MEASURED, len(self.records))
        for k in np.linspace(0, len(self.records) - 1, count).astype(int):
            record = self.records[k]
            with contextlib.suppress(VideoError), record.open(self.data) as video:
                span = 1 + np.ptp(self.choose_frames(video, record, np.random.RandomState(0)))
                frames = len(video) if span > len(video) / 2 else span
                seconds.append(frames / video.fps if video.fps else 0.0)
        return round(float(np.median(seconds)), 3) if seconds else 0.0

    @contextlib.contextmanager
    def open_clip(self, record: Any, rng: np.random.RandomState) -> Iterator[Clip]:
        """The frames of a clip, which are decoded inside the `with` block."""
        with self.open_video(record) as video:
            yield Clip(video, self.choose_frames(video, record, rng))

    def augment(
        self, clip: np.ndarray, channel_axis: int, rng: np.random.RandomState
    ) -> np.ndarray:
        """A clip of cropped RGB frames after `data.rand_augment` and `data.erase`.

        Apart from `channel_axis` its axes are those of the frames: time, height, width.
        """
        data: Any = self.data  # of a network for videos
        if not (data.rand_augment or data.erase):
            return clip
        from utils.video.augment import augment_frames  # here: most trainings need it not

        frames = np.moveaxis(clip, channel_axis, -1)
        frames = augment_frames(frames, policy=data.rand_augment, erase=data.erase, rng=rng)
        return np.ascontiguousarray(np.moveaxis(frames, -1, channel_axis))


class EvalVideos(VideoRows, EvalRows):
    """Evaluation rows of videos."""
