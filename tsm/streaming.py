"""TSM frame by frame, over a video or from a camera: scores as they come.

Each frame passes once; what the frames before left in the shifted channels is carried along
(`tsm/online.py`). The scores of the last `data.segments` frames are averaged, as the network's
consensus over a clip does, then made probabilities.

How many frames a second are taken is what training took: dense sampling takes every (64 /
segments)-th frame; uniform sampling spreads the segments over a video, here over three seconds, the
length of Jester's. The demonstration of the original takes every second camera frame, averages 12
scores, and then holds an answer until it comes three times, with rules for single gestures of
Jester: `--fps 15` comes near it, the rules are left out.

Streaming computes in float32, whatever `run.amp` says.
"""

import csv
import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor

from tsm import sampling, transforms
from tsm.model import TSM
from tsm.network import NETWORK
from tsm.online import OnlineTSM
from tsm.predict import open_source
from utils import signals
from utils.evaluate.predict import LONGEST, file_names
from utils.evaluate.predict_plots import draw_classes
from utils.evaluate.video_inference import FPS, Head, columns, entries, softmax
from utils.export import inference
from utils.files import explained
from utils.plotting import shortened
from utils.video.camera import camera_frames

SPREAD = 3.0  # seconds that the segments of a uniform clip are taken to span
DRAWN = 10_000  # frames in the picture at most: the last ones


class Stream(NamedTuple):
    """What comes in: a name, frames a second of what is taken, and (seconds, frame (H, W, C))."""

    name: str
    fps: float
    frames: Iterator[tuple[float, np.ndarray]]


class Scorer:
    """Frames (H, W, C) in, probabilities (classes,) out."""

    def __init__(self, net: TSM, cfg: Any):
        self.net, self.cfg = OnlineTSM(net).set_train(False), cfg
        self.buffers = self.net.initial_buffers(cfg.test_crop, cfg.test_crop)
        self.last: deque = deque(maxlen=cfg.data.segments)

    def __call__(self, frame: np.ndarray) -> np.ndarray:
        data, crop = self.cfg.data, self.cfg.test_crop
        clip = transforms.test_clips(frame[None], 1, 1, data.resize, crop, 1)[0]  # (1, C, h, w)
        scores, *self.buffers = self.net(Tensor(clip), *self.buffers)
        self.last.append(scores.asnumpy()[0].astype(np.float64))
        mean = np.mean(self.last, axis=0)
        return softmax(mean) if self.cfg.model.before_softmax else mean


def run(
    cfg: Any, checkpoint_path: str, video: str, head: Head, top: int, fps: float, out: Path
) -> dict:
    """Streams until the video ends, or ctrl-C. Prints a JSON line a frame; returns the summary.

    `fps` 0 is the rate of training. Writes `NAME_stream.csv` and `NAME_stream.png` into `out`.
    """
    check(cfg)
    stream = open_stream(video, cfg, fps)
    cfg = replace(cfg, run=replace(cfg.run, amp="O0"))
    net = inference.load(TSM, cfg, checkpoint_path, NETWORK.classifier)
    if not isinstance(net, TSM):
        raise ValueError(f"--stream needs a checkpoint, not {checkpoint_path}")
    scorer, stop = Scorer(net, cfg), threading.Event()
    seen = ((seconds, scorer(frame)) for seconds, frame in stream.frames)
    table, picture = (out / f"{stream.name}_stream{suffix}" for suffix in (".csv", ".png"))
    with explained(out, "--out"), signals.reacting(lambda _: stop.set()):
        out.mkdir(parents=True, exist_ok=True)
        count, total, last = write_rows(table, head, seen, stop)
    if not count:
        raise ValueError(f"{video}: no frame came")
    times, shares = (np.array(each) for each in zip(*last))
    spans = np.stack((times, times), axis=1)
    title = f"{shortened(video, LONGEST)}, frame by frame"
    draw_classes(picture, title, spans, [("", head.names, shares)])
    summary = {"video": video, "frames": count, "fps": round(stream.fps, 3)}
    summary["top"] = entries(head, total / count, top)
    return {**summary, "interrupted": stop.is_set(), "csv": str(table), "picture": str(picture)}


def write_rows(
    path: Path, head: Head, seen: Iterator[tuple[float, np.ndarray]], stop: threading.Event
) -> tuple[int, np.ndarray, deque]:
    """Tells and writes (seconds, probabilities) as they come; their number, sum and last ones."""
    count, total, last = 0, np.zeros(head.classes), deque(maxlen=DRAWN)
    part = path.with_name(f"{path.name}.tmp")
    try:
        with open(part, "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["time", *columns([head])])
            for seconds, shares in seen:
                first = entries(head, shares, 1)[0]
                print(json.dumps({"time": round(seconds, 3), **first}), flush=True)
                rows.writerow([f"{seconds:.3f}", *(f"{share:.7g}" for share in shares)])
                last.append((seconds, shares))
                count, total = count + 1, total + shares
                if stop.is_set():
                    break
        if count:
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return count, total, last


def check(cfg: Any) -> None:
    if not cfg.model.online:
        raise ValueError(
            "--stream needs a network that was trained with model.online=true, such as "
            "tsm/configs/tsm_mobilenetv2_jester_online.yaml"
        )
    if cfg.data.frames_per_segment > 1:
        raise ValueError("--stream: data.frames_per_segment must be 1")


def rate_of(cfg: Any, source_fps: float) -> float:
    """Frames a second that a clip of training takes of a video."""
    if cfg.data.sampling == "dense":
        return source_fps / (sampling.WINDOW // cfg.data.segments)
    return cfg.data.segments / SPREAD


def open_stream(video: str, cfg: Any, fps: float) -> Stream:
    """A camera where `video` is a number. Raises ValueError where neither can be opened."""
    if video.isdecimal():
        rate, frames = camera_frames(int(video))
        name, timed = f"camera_{video}", clocked(frames)
    else:
        source = open_source(video, cfg)
        rate, frames, name = source.fps, source.in_order(), file_names([video])[0]
        timed = ((k / (rate or FPS), frame) for k, frame in enumerate(frames))
    rate = rate or FPS
    fps = min(fps or rate_of(cfg, rate), rate)
    return Stream(name, fps, thinned(timed, fps / rate))


def thinned(frames: Iterator, share: float) -> Iterator:
    """The first of the frames, and then that share of them, evenly."""
    for k, frame in enumerate(frames):
        if k == 0 or int(k * share + 1e-9) > int((k - 1) * share + 1e-9):
            yield frame


def clocked(frames: Iterator[np.ndarray]) -> Iterator[tuple[float, np.ndarray]]:
    began = time.monotonic()
    for frame in frames:
        yield time.monotonic() - began, frame
