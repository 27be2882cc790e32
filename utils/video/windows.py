"""Windows of a video: parts of equal length, by the number of a frame or by its time."""

from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from utils.video.reader import DEFAULT_FPS, Timeline, find_frames, find_time

# Seconds: a longer video is divided into windows
LONG_VIDEO = 30.0
WINDOW = 10.0


@dataclass
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


def split_into_windows(
    source: Timeline, seconds: Optional[float], step: Optional[float] = None
) -> list[Window]:
    """The windows of a video, all of one length; the last one ends with the video.

    `seconds` 0 is the whole video; None divides only long videos. `step` is the time from one start
    to the next, by default `seconds`. If the rate is variable, a window in which no frame begins
    has the frame that is shown at its start.
    """
    fps = source.fps or DEFAULT_FPS
    times = source.times
    if seconds is None:
        seconds = WINDOW if len(source) > LONG_VIDEO * fps else 0.0
    step = step or seconds
    if times is None:
        length = max(round(seconds * fps), 1)
        if seconds == 0 or length >= len(source):
            return [Window(0, len(source), source.fps)]
        stride = max(step * fps, 1.0)
        last_frame = len(source) - length
        firsts = [round(k * stride) for k in range(int(last_frame / stride) + 1)]
        firsts = [first for first in firsts if first < last_frame]
        return [Window(first, length, source.fps) for first in (*firsts, last_frame)]
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
