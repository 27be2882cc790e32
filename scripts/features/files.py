"""The source of features and the files that they are written to."""

import base64
import contextlib
import csv
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import numpy as np

from scripts.executors.process_pool import Part
from scripts.executors.video_jobs import PART_FILE, RunJobs, make_key, write_records
from scripts.features.jobs import DTYPE, UNLISTED
from scripts.prediction.files import list_videos
from utils.data.annotation_file import Record, format_label
from utils.data.records import read_list
from utils.files import JOURNAL, open_replacement, write_beside
from utils.networks import Network
from utils.settings import NetworkConfig, VideoData
from utils.video.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES

LISTS = (".txt", ".csv")  # of annotation files
FEATURES = "features"
TABLE = "index.csv"
HEADER_BYTES = 128  # of any shape with up to 20 digits: NumPy pads to a multiple of 64
COLUMNS = ("path", "start", "end", "label")
OWN = {TABLE: f"{','.join(COLUMNS)}\\s", PART_FILE.format(FEATURES, "*"): JOURNAL}


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


@contextlib.contextmanager
def open_feature_files(folder: Path, root: str) -> Iterator[Callable]:
    """A function that adds the rows of a video to features.npy and index.csv.

    Both replace those in `folder` when they are complete. index.csv is the last one: if it exists,
    it is that of features.npy.
    """
    array = folder / f"{FEATURES}.npy"
    table = folder / TABLE
    shape = (0, 0)

    def write_header() -> None:
        data.seek(0)
        header = {"descr": DTYPE, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(data, header)
        assert data.tell() == HEADER_BYTES

    def add(job: Record, record: dict) -> None:
        nonlocal shape
        if "error" not in record:
            data.write(base64.b64decode(record["features"]))
            path = job.path.removeprefix(f"{root}/") if root else job.path
            label = "" if job.label == UNLISTED else format_label(job.label)
            rows.writerows([path, *times, label] for times in record["times"])
            shape = (shape[0] + len(record["times"]), record["width"])

    with (
        write_beside(array) as temporary,
        open(temporary, "wb") as data,
        open_replacement(table, newline="") as text,
    ):
        rows = csv.writer(text)
        rows.writerow(COLUMNS)
        write_header()
        yield add
        write_header()  # now with the number of rows
        data.flush()
        os.fsync(data.fileno())
        table.unlink(missing_ok=True)
        os.replace(temporary, array)


def write_features(
    source: Source,
    folder: Path,
    run_jobs: RunJobs[Record],
    settings: str,
    part: Optional[Part] = None,
) -> dict:
    """Writes features.npy and index.csv; returns the result of the command. See `write_records`."""

    def key(record: Record) -> str:
        return make_key(settings, record.path, record.num_frames, record.segment)

    writer = (
        contextlib.nullcontext(lambda *_: None) if part else open_feature_files(folder, source.root)
    )
    result = write_records(
        source.records,
        key=key,
        run_jobs=run_jobs,
        writer=writer,
        folder=folder,
        name=FEATURES,
        part=part,
    )
    if part:
        return result
    return {"features": [*np.load(folder / f"{FEATURES}.npy", mmap_mode="r").shape], **result}
