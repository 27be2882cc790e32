"""Streaming inference of TSM: labels a video or a camera frame by frame.

The network reads each frame once and keeps the shifted channels of earlier frames as buffers
(`tsm/online.py`). The scores of the last `data.segments` frames are averaged, like the consensus of
a clip, and then become probabilities.

The frame rate is that of training: dense sampling takes every (64 / segments)-th frame; uniform
sampling spreads the segments over a video, here over three seconds, the length of a Jester video.
The demo of the original takes every second camera frame, averages 12 scores, and changes its answer
only after three equal results, with special rules for some gestures of Jester. `--fps 15` is close
to it; the rules are left out.

Streaming computes in float32, whatever `run.amp` is.
"""

import csv
import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mindspore import Tensor

from tsm import sampling, transforms
from tsm.camera import open_camera
from tsm.config import Config
from tsm.model import TSM
from tsm.network import NETWORK
from tsm.online import OnlineTSM
from utils import signals
from utils.evaluate.predict import (
    DEFAULT_FPS,
    TITLE_LENGTH,
    Head,
    list_columns,
    make_file_names,
    rank_classes,
    softmax,
)
from utils.evaluate.predict_plots import draw_timeline
from utils.files import open_replacement, report_write_errors
from utils.inference.load import load_checkpoint
from utils.messages import format_line
from utils.video.decoders import open_path

CLIP_SECONDS = 3.0  # assumed length of a clip of uniform sampling
MAX_PLOTTED_FRAMES = 10_000  # the picture shows the last ones


class Stream(NamedTuple):
    """A source of frames: name, frames per second, iterator of (seconds, frame (H, W, C))."""

    name: str
    fps: float
    frames: Iterator[tuple[float, np.ndarray]]


class FrameScorer:
    """Maps frames (H, W, C), one after the other, to probabilities (classes,)."""

    def __init__(self, net: TSM, cfg: Config):
        self.net = OnlineTSM(net).set_train(False)
        self.cfg = cfg
        self.buffers = self.net.initial_buffers(cfg.test_crop, cfg.test_crop)
        self.recent_scores: deque = deque(maxlen=cfg.data.segments)

    def __call__(self, frame: np.ndarray) -> np.ndarray:
        data = self.cfg.data
        crop = self.cfg.test_crop
        views = transforms.make_test_views(
            frame[None], clips=1, segments=1, resize_to=data.resize, crop=crop, crops=1
        )
        scores, *self.buffers = self.net(Tensor(views[0]), *self.buffers)  # (1, C, h, w)
        self.recent_scores.append(scores.asnumpy()[0].astype(np.float64))
        mean = np.mean(self.recent_scores, axis=0)
        return softmax(mean) if self.cfg.model.before_softmax else mean


def run_stream(
    cfg: Config, checkpoint_path: str, video: str, head: Head, top: int, fps: float, out: Path
) -> dict:
    """Labels the frames of `video` until it ends, or until ctrl-C. Returns the summary.

    Prints a JSON line for each frame. `fps` 0 is the frame rate of training. Writes
    `NAME_stream.csv` and `NAME_stream.png` into `out`. Raises ValueError if the settings do not
    allow streaming, if the video cannot be opened or if it has no frame.
    """
    check_settings(cfg)
    stream = open_stream(video, cfg, fps)
    if Path(checkpoint_path).suffix in (".mindir", ".onnx"):
        raise ValueError(f"--stream needs a checkpoint, not {checkpoint_path}")
    net = load_checkpoint(NETWORK, cfg=cfg, path=checkpoint_path, level="O0")
    scorer = FrameScorer(net, cfg)
    stop = threading.Event()
    results = ((seconds, scorer(frame)) for seconds, frame in stream.frames)
    table, picture = (out / f"{stream.name}_stream{suffix}" for suffix in (".csv", ".png"))
    with report_write_errors(out, "--out"), signals.handle_signals(lambda _: stop.set()):
        out.mkdir(parents=True, exist_ok=True)
        count, total, last = write_rows(table, head=head, results=results, stop=stop, video=video)
    times, probabilities = (np.array(column) for column in zip(*last))
    spans = np.stack((times, times), axis=1)
    title = f"{format_line(video, TITLE_LENGTH)}, frame by frame"
    draw_timeline(picture, title=title, spans=spans, panels=[("", head.names, probabilities)])
    summary = {"video": video, "frames": count, "fps": round(stream.fps, 3)}
    summary["top"] = rank_classes(head, total / count, top)
    return {**summary, "interrupted": stop.is_set(), "csv": str(table), "picture": str(picture)}


def write_rows(
    path: Path, head: Head, results: Iterator, stop: threading.Event, video: str
) -> tuple[int, np.ndarray, deque]:
    """Prints and writes `results`, (seconds, probabilities) of every frame, until `stop` is set.

    Returns the number of frames, the sum of their probabilities, and the last results. Raises
    ValueError, with the name of the video, if there is no frame.
    """
    count = 0
    total = np.zeros(head.classes)
    last = deque(maxlen=MAX_PLOTTED_FRAMES)
    with open_replacement(path, newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time", *list_columns([head])])
        for seconds, probabilities in results:
            best = rank_classes(head, probabilities, 1)[0]
            print(json.dumps({"time": round(seconds, 3), **best}), flush=True)
            rows.writerow([f"{seconds:.3f}", *(f"{value:.7g}" for value in probabilities)])
            last.append((seconds, probabilities))
            count = count + 1
            total = total + probabilities
            if stop.is_set():
                break
        if not count:
            raise ValueError(f"{video}: no frame came")
    return count, total, last


def check_settings(cfg: Config) -> None:
    """Raises ValueError if the network cannot stream."""
    if not cfg.model.online:
        raise ValueError(
            "--stream needs a network that was trained with model.online=true, such as "
            "tsm/configs/tsm_mobilenetv2_jester_online.yaml"
        )
    if cfg.data.frames_per_segment > 1:
        raise ValueError("--stream: data.frames_per_segment must be 1")


def compute_frame_rate(cfg: Config, source_fps: float) -> float:
    """Frames per second of a training clip of a video with `source_fps` frames per second."""
    if cfg.data.sampling == "dense":
        return source_fps / (sampling.WINDOW // cfg.data.segments)
    return cfg.data.segments / CLIP_SECONDS


def open_stream(video: str, cfg: Config, fps: float) -> Stream:
    """Opens a video file, or a camera if `video` is a number, at `fps` frames per second.

    Raises ValueError if it cannot be opened.
    """
    if video.isdecimal():
        rate, frames = open_camera(int(video))
        name = f"camera_{video}"
        timed = add_timestamps(frames)
    else:
        source = open_path(video, cfg.data)
        rate = source.fps
        frames = source.in_order()
        name = make_file_names([video])[0]
        timed = ((k / (rate or DEFAULT_FPS), frame) for k, frame in enumerate(frames))
    rate = rate or DEFAULT_FPS
    fps = min(fps or compute_frame_rate(cfg, rate), rate)
    return Stream(name, fps, subsample_frames(timed, fps / rate))


def subsample_frames(frames: Iterator, fraction: float) -> Iterator:
    """Yields the first frame, and then `fraction` of the frames at equal distances."""
    for k, frame in enumerate(frames):
        if k == 0 or int(k * fraction + 1e-9) > int((k - 1) * fraction + 1e-9):
            yield frame


def add_timestamps(frames: Iterator[np.ndarray]) -> Iterator[tuple[float, np.ndarray]]:
    """Yields (seconds since the first request, frame)."""
    start = time.monotonic()
    for frame in frames:
        yield time.monotonic() - start, frame
