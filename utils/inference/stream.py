"""Labels the frames of a stream: in sliding windows, or frame by frame.

A `Stream` takes frames from a source (`utils/video/live.py`) and gives them to the
`StreamPredictor` of a network. A live source is read by a thread; frames that the network is too
slow for are dropped.
"""

import abc
import itertools
import threading
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np

from utils import runtime
from utils.evaluate.label_space import LabelSpace
from utils.evaluate.scorer import Scorer
from utils.evaluate.windows import crop_for_heads, warn_of_short_window
from utils.inference.prediction import Prediction, make_file_names
from utils.log import log
from utils.settings import Run, VideoData
from utils.video import live
from utils.video.decoders import open_path, open_video
from utils.video.live import Frame, LatestItems, StreamSource
from utils.video.reader import DEFAULT_FPS, MAX_PIXELS
from utils.video.windows import WINDOW, Window, split_into_windows
from utils.video.writer import CaptionedVideo

if TYPE_CHECKING:
    from utils.inference.model import Model

WAITING_FRAMES = 8  # of a live source that is read frame by frame; older ones are dropped
IMAGE_STEP = 1.0  # seconds between the frames that a network for images reads

# Start and end in seconds, and the probabilities (classes,) of each head between them
Scores = tuple[float, float, list[np.ndarray]]


class Timing(NamedTuple):
    """When a stream has results: `window` and `step` in seconds, `fps` results per second.

    None is the default of the network.
    """

    source: StreamSource
    window: Optional[float] = None
    step: Optional[float] = None
    fps: Optional[float] = None

    @property
    def source_fps(self) -> float:
        return self.source.fps or DEFAULT_FPS


class PreparedFrame(NamedTuple):
    """What a `StreamPredictor` needs of a frame."""

    number: int
    seconds: float
    restarts: bool
    arrays: list[np.ndarray]


class OpenWindow(NamedTuple):
    """A window that has begun: which frames it needs, for each head and in all."""

    window: Window
    plans: list[np.ndarray]
    needed: set[int]


class StreamPredictor(abc.ABC):
    """Maps the frames of a stream to probabilities.

    `columns` name the times of a result in tables. Of a live source at most `capacity` frames wait.
    """

    columns: Sequence[str] = ("start", "end")
    capacity = WAITING_FRAMES
    skipped = 0  # windows that were not computed because a later one was complete

    def __init__(self, fps: float):
        self.fps = fps  # of the frames that it reads
        self.last_number = -1.0

    def chooses(self, frame: Frame, source_fps: float) -> bool:
        """Whether to read this frame: `fps` of `source_fps`, at equal distances, and the first."""
        number = float(frame.number if frame.position is None else frame.position)
        fraction = self.fps / source_fps
        before = int(self.last_number * fraction + 1e-9)
        self.last_number = number
        return frame.restarts or int(number * fraction + 1e-9) > before

    @abc.abstractmethod
    def prepare(self, pixels: np.ndarray) -> list[np.ndarray]:
        """What it needs of a frame (H, W, C). A thread that reads the source calls it."""

    @abc.abstractmethod
    def add(self, frame: PreparedFrame, is_behind: bool) -> Iterator[Scores]:
        """The result that a frame completes. `is_behind`: the next frame already waits."""


class FramePredictor(StreamPredictor):
    """A result for each frame."""

    columns = ("time",)

    def restart(self) -> None:  # noqa: B027 - a network without memory needs none
        """Forgets the frames before an interruption."""

    @abc.abstractmethod
    def score(self, view: np.ndarray) -> np.ndarray:
        """The probabilities (classes,) after the frame that `prepare` made `view` of."""

    def add(self, frame: PreparedFrame, is_behind: bool) -> Iterator[Scores]:
        if frame.restarts:
            self.restart()
        yield frame.seconds, frame.seconds, [self.score(frame.arrays[0])]


class ImagePredictor(FramePredictor):
    """A network for images: each frame by itself, with the view of its evaluation."""

    def __init__(self, scorer: Scorer, head: LabelSpace, timing: Timing):
        if timing.window is not None or (timing.step and timing.fps):
            raise ValueError("window: a network for images takes none, but a step or fps")
        super().__init__(min(timing.fps or 1 / (timing.step or IMAGE_STEP), timing.source_fps))
        self.scorer = scorer
        self.head = head

    def prepare(self, pixels: np.ndarray) -> list[np.ndarray]:
        crops = self.head.crop_frames(pixels[None])
        return [self.head.make_views(crops, np.zeros(1, np.int64))]

    def score(self, view: np.ndarray) -> np.ndarray:
        return self.head.predict_probs(self.scorer, view)


class WindowPredictor(StreamPredictor):
    """Windows of `window` seconds, `step` seconds apart, with the views of the evaluation.

    In memory are the crops of the frames that open windows need. A frame that did not come counts
    as the one before it. If several windows of a live source are complete when the network is
    ready, it computes the last one and skips the others. The windows of a file are those of
    `split_into_windows`.
    """

    def __init__(self, scorer: Scorer, heads: Sequence[LabelSpace], timing: Timing):
        if timing.fps is not None:
            raise ValueError("fps: this network reads windows; set step, or in tsm online=true")
        super().__init__(timing.source_fps)
        source = timing.source
        seconds = WINDOW if timing.window is None else timing.window
        step = timing.step or seconds
        self.all_windows: list[Window] = []  # of a file
        self.length = max(round(seconds * self.fps), 1)
        if source.length:
            self.all_windows = split_into_windows(source, seconds, step)
            self.length = max(map(len, self.all_windows))
        elif seconds == 0:
            raise ValueError("window must be above 0 seconds: the length of this stream is unknown")
        self.is_live = source.is_live
        self.stride = max(step * self.fps, 1.0)
        self.capacity = self.length + min(int(self.stride), self.length) + 1
        self.scorer = scorer
        self.heads = heads
        self.first_window = Window(0, self.length, source.fps)
        if len(self.all_windows) != 1:
            warn_of_short_window(self.first_window, heads)
        self.restart(0)

    def chooses(self, frame: Frame, source_fps: float) -> bool:
        return True  # a window chooses among all frames

    def restart(self, number: int) -> None:
        """Begins the first window with the frame of this number."""
        self.origin = number
        self.next_number = 0
        self.last_arrays: list[np.ndarray] = []
        self.frames: dict[int, list[np.ndarray]] = {}
        self.open: deque[OpenWindow] = deque()
        self.coming = iter(self.all_windows)
        if not self.all_windows:
            starts = (round(k * self.stride) for k in itertools.count())
            self.coming = (replace(self.first_window, start=start) for start in starts)
        self.next_window = next(self.coming, None)

    def prepare(self, pixels: np.ndarray) -> list[np.ndarray]:
        return [crops[0] for crops in crop_for_heads(pixels[None], self.heads)]

    def add(self, frame: PreparedFrame, is_behind: bool) -> Iterator[Scores]:
        missing = frame.number - self.origin - self.next_number
        if frame.restarts or missing > self.length:
            self.restart(frame.number)
        number = frame.number - self.origin
        for k in range(self.next_number, number + 1):
            while self.next_window is not None and self.next_window.start <= k:
                window = self.next_window
                plans = [window.start + head.frame_indices(window) for head in self.heads]
                needed = set(np.concatenate([plan.ravel() for plan in plans]).tolist())
                self.open.append(OpenWindow(window, plans, needed))
                self.next_window = next(self.coming, None)
            if any(k in begun.needed for begun in self.open):
                self.frames[k] = frame.arrays if k == number else self.last_arrays
        self.next_number = number + 1
        self.last_arrays = frame.arrays
        ends = [begun.window.start + begun.window.length for begun in self.open]
        complete = [begun for begun, end in zip(self.open, ends) if end <= number + 1]
        if not complete or is_behind:
            return
        if self.is_live:
            self.skipped += len(complete) - 1
            complete = complete[-1:]
        for begun in complete:
            start, end = (self.origin / self.fps + seconds for seconds in begun.window.span)
            results = []
            for index, (head, plan) in enumerate(zip(self.heads, begun.plans)):
                unique, positions = np.unique(plan, return_inverse=True)
                crops = np.stack([self.frames[k][index] for k in unique.tolist()])
                views = head.make_views(crops, positions.reshape(plan.shape))
                results.append(head.predict_probs(self.scorer, views))
            yield start, end, results
        while self.open and self.open[0].window.start <= complete[-1].window.start:
            self.open.popleft()
        first = self.open[0].window.start if self.open else self.next_number
        self.frames = {k: arrays for k, arrays in self.frames.items() if k >= first}


class StreamResult(NamedTuple):
    """The best classes from `start` to `end`, in seconds; of a single frame both are its time.

    `top` is as from `Model.predict`; `probabilities` has an array (classes,) for each data set of
    the network, and `prediction` has both.
    """

    start: float
    end: float
    top: Any
    probabilities: list[np.ndarray]
    prediction: Prediction


@dataclass(eq=False)
class Stream(Iterator[StreamResult], AbstractContextManager["Stream"]):
    """The results of a stream, one after the other; a context manager that closes the source.

    Results have `top` classes of at least `threshold`; the best one is drawn into `video`.
    Iterating raises VideoError if the source is broken; the results before are right.
    """

    source: StreamSource
    scorer: StreamPredictor
    heads: Sequence[LabelSpace]
    top: int = 5
    threshold: float = 0.0
    video: Optional[CaptionedVideo] = None
    run: Optional[Run] = None

    def __post_init__(self) -> None:
        self.frames = 0  # that the network has read
        self.caption = ""
        self.stopped = threading.Event()
        self.queue: Optional[LatestItems[PreparedFrame]] = None
        self.results = self.compute_results()

    @property
    def dropped(self) -> int:
        """Frames of a live source that the network was too slow for."""
        return self.queue.dropped if self.queue else 0

    def __next__(self) -> StreamResult:
        return next(self.results)

    def stop(self) -> None:
        """Ends the iteration after the present result; from any thread."""
        self.stopped.set()
        self.source.stopped.set()
        if self.queue:
            self.queue.close()

    def close(self, *_: object) -> None:
        """Ends the iteration, and completes the saved video."""
        self.stop()
        self.results.close()
        if self.video:
            self.video.close()

    __exit__ = close

    def compute_results(self) -> Generator[StreamResult, None, None]:
        prepared = self.prepare_frames()
        if self.source.is_live:
            self.queue = LatestItems(prepared, self.scorer.capacity)
        try:
            for frame in self.queue or prepared:
                self.frames += 1
                is_behind = self.queue is not None and bool(self.queue.waiting)
                with runtime.borrow_context(self.run):  # other threads compute while this one reads
                    results = [*self.scorer.add(frame, is_behind)]
                for start, end, values in results:
                    stacked = [probabilities[None] for probabilities in values]
                    prediction = Prediction(self.heads, [(start, end)], stacked, self.threshold)
                    self.caption = prediction.caption
                    top = prediction.top(self.top)
                    yield StreamResult(start, end, top, values, prediction)
                if self.stopped.is_set():
                    break
        finally:
            self.stop()
            if self.queue is None:
                prepared.close()
            if self.video:
                self.video.close()

    def prepare_frames(self) -> Generator[PreparedFrame, None, None]:
        """The frames that the network reads; writes all frames to the saved video.

        A frame is written when the next one is requested: that of a file has the caption of its
        own result.
        """
        fps = self.source.fps or DEFAULT_FPS
        for frame in self.source.frames():
            if self.scorer.chooses(frame, fps):
                arrays = self.scorer.prepare(frame.pixels)
                yield PreparedFrame(frame.number, frame.seconds, frame.restarts, arrays)
            if self.video:
                position = frame.number if frame.position is None else frame.position
                self.video.write(position, frame.pixels, self.caption)


def open_stream(
    model: "Model", source: str, retry: float, save: Union[Path, str], times: Mapping, **shown: Any
) -> Stream:
    """The stream of a camera (a number), an address, a video file or a folder of frames.

    Frame by frame if the network can, else in windows. `times` are those of `Timing`, `shown` the
    `top` and the `threshold` of the results.
    """
    data = model.cfg.data
    if source.isdecimal():
        connect = partial(live.open_camera, int(source))
        opened = StreamSource(f"camera_{source}", connect, retry, log.warning)
    elif live.is_address(source):
        max_pixels = data.max_pixels if isinstance(data, VideoData) else MAX_PIXELS
        portable = isinstance(data, VideoData) and data.reader == "portable"
        connect = partial(live.open_address, source, max_pixels, portable=portable)
        opened = StreamSource(live.name_address(source), connect, retry, log.warning)
    else:
        reader = open_path(source, data) if isinstance(data, VideoData) else open_video(source)
        (name,) = make_file_names([source])
        opened = StreamSource(name, partial(live.open_file, reader), retry=0.0)
    timing = Timing(opened, **times)
    scorer: StreamPredictor
    with model.computing():
        online = model.network.find_online_predictor(model.cfg)
        if online and timing.window is None and timing.step is None:
            scorer = online(model.cfg, timing, model.open_steps)
        elif model.network.reads_images:
            scorer = ImagePredictor(model.scorer, model.heads[0], timing)
        else:
            scorer = WindowPredictor(model.scorer, model.heads, timing)
    video = CaptionedVideo(Path(save), opened.fps or DEFAULT_FPS) if save else None
    return Stream(opened, scorer, model.heads, video=video, run=model.cfg.run, **shown)
