"""The features of videos: the source, the rows of a video, and the files of all rows."""

import base64
import csv
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Optional

import numpy as np

from scripts.executors.video_jobs import STARTED, Results, check_errors
from scripts.prediction.records import list_videos
from utils import cli
from utils.cores import count_workers
from utils.data.annotation_file import Record, format_label, read_list
from utils.evaluate.windows import read_ahead, read_windows
from utils.files import open_replacement, write_beside
from utils.inference.model import Model
from utils.networks import Network
from utils.settings import NetworkConfig, VideoData
from utils.video.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from utils.video.reader import VideoError
from utils.video.windows import Window, split_into_windows

LISTS = (".txt", ".csv")  # of annotation files
FEATURES = "features"
TABLE = "index.csv"
DTYPE = "<f4"  # float32
HEADER_BYTES = 128  # of any shape with up to 20 digits: NumPy pads to a multiple of 64
UNLISTED = -1  # the label of a video that is not a line of a list
COLUMNS = ("path", "start", "end", "label")
OWN = {TABLE: f"{','.join(COLUMNS)}\\s", STARTED.format(FEATURES): r"\Z"}


class Source(NamedTuple):
    """Videos; the paths of a list start at `root`. `head` is the index of the head that fits."""

    records: list[Record]
    root: str = ""
    head: int = 0


def read_source(network: Network, cfg: NetworkConfig, sources: Sequence[str]) -> Source:
    """The videos of one list, or videos and those in folders, without labels.

    A list of the config file has the folder of its videos and its head; another list has the folder
    of the first one. Labels may be any integer that is not negative.

    Raises ValueError for a list beside other sources or for a network of images, and for bad lines.
    """
    lists = [Path(source) for source in sources if Path(source).suffix.lower() in LISTS]
    files = network.list_annotation_files(cfg)
    if not lists:
        suffixes = VIDEO_SUFFIXES if isinstance(cfg.data, VideoData) else IMAGE_SUFFIXES
        videos = enumerate(list_videos(sources, suffixes), 1)
        return Source([Record(path, num_frames=None, label=UNLISTED, line=k) for k, path in videos])
    if len(sources) > 1:
        raise ValueError(f"SOURCE: the list {lists[0]} must be the only one")
    if not files:
        raise ValueError(f"SOURCE: {network.name} reads images or folders of images, not a list")
    path = lists[0].resolve()
    own = [file for file in files if file.path.resolve() == path]
    file = (own or files)[0]._replace(path=lists[0], num_classes=sys.maxsize)
    records = read_list(file)
    heads = network.list_label_spaces(cfg)
    folders = [head.names_file.parent.resolve() for head in heads if head.names_file]
    head = folders.index(path.parent) if path.parent in folders else 0
    return Source(records, str(file.root), head)


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

    def run_jobs(self, jobs: list[Record]) -> Results:
        """The record of each job: `times`, `width`, `features`; or `video` and `error`."""
        workers = count_workers(self.model.cfg.data.workers)
        for job, parts in read_ahead(self.read, jobs, workers):
            try:
                yield job, self.compute(job, parts)
            except VideoError as error:
                yield job, {"video": job.path, "error": str(error)}

    def read(self, job: Record) -> Iterator[tuple[Window, list[np.ndarray]]]:
        """The windows of a video with their views."""
        data = self.model.cfg.data
        is_listed = job.label != UNLISTED and isinstance(data, VideoData)
        with job.open(data) if is_listed else self.model.open(job.path) as source:
            seconds = self.options.window if self.options.per == "window" else 0.0
            windows = split_into_windows(source, seconds, self.options.step)
            yield from read_windows(source, windows, [self.head])

    def compute(self, job: Record, parts: Iterator[tuple[Window, list[np.ndarray]]]) -> dict:
        """The record of a video; times of a segment count from the start of its video."""
        start = job.segment.start if job.segment else 0.0
        times = []
        rows = []
        for window, (views,) in parts:
            spans = [window.span]
            values = self.model.compute_features(views)[None]  # (rows, views, C)
            if self.options.per == "clip":
                indices = self.head.frame_indices(window).reshape(self.head.clips, -1)
                spans = [window.find_time(np.array([k.min(), k.max() + 1])) for k in indices]
                values = self.head.group_by_clip(values[0])
            rows.append(values.mean(axis=1, dtype=np.float64))
            is_image = window.length == 1 and not window.fps
            times += [["", ""] if is_image else [f"{start + t:.3f}" for t in s] for s in spans]
        array = np.concatenate(rows).astype(DTYPE)
        data = base64.b64encode(array.tobytes()).decode()
        return {"times": times, "width": array.shape[1], "features": data}


def write_features(source: Source, results: Iterator[dict], folder: Path) -> tuple[list, list[str]]:
    """Writes the rows of all videos; returns the shape of the array, and the errors of videos.

    Both files replace those in `folder` when they are complete. index.csv is the last one: if it
    exists, it is that of features.npy. Raises ValueError if no video could be read.
    """
    array = folder / f"{FEATURES}.npy"
    table = folder / TABLE
    shape = [0, 0]
    errors = []
    with (
        write_beside(array) as temporary,
        open(temporary, "wb") as data,
        open_replacement(table, newline="") as text,
    ):
        rows = csv.writer(text)
        rows.writerow(COLUMNS)
        data.write(bytes(HEADER_BYTES))  # the number of rows is known at the end
        for job, record in zip(source.records, results):
            if "error" in record:
                errors.append(record["error"])
                continue
            data.write(base64.b64decode(record["features"]))
            path = job.path.removeprefix(f"{source.root}/") if source.root else job.path
            label = "" if job.label == UNLISTED else format_label(job.label)
            rows.writerows([path, *times, label] for times in record["times"])
            shape = [shape[0] + len(record["times"]), record["width"]]
        check_errors(errors, source.records, folder, FEATURES)
        data.seek(0)
        header = {"descr": DTYPE, "fortran_order": False, "shape": tuple(shape)}
        np.lib.format.write_array_header_1_0(data, header)
        assert data.tell() == HEADER_BYTES
        data.flush()
        os.fsync(data.fileno())
        table.unlink(missing_ok=True)
        os.replace(temporary, array)
    return shape, errors
