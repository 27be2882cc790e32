"""Records of a list of videos: reads the list, and opens the video of a record."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utils.data.annotation_file import AnnotationFile, Record, read_annotations
from utils.data.class_names import match_classes, read_list_names
from utils.data.classes import choose_fraction, list_classes
from utils.log import log
from utils.settings import VideoData
from utils.video.decoders import open_path
from utils.video.reader import FrameReader


def read_list(file: AnnotationFile) -> list[Record]:
    """The records of a list, with the labels of the network: `match_classes`.

    Raises ValueError as `read_annotations` and `match_classes` do.
    """
    names = read_list_names(file)
    classes = max(file.num_classes, len(names))
    records, left_out = read_annotations(file._replace(num_classes=classes))
    if left_out:
        log.info("%s: %d videos are left out: fewer than 3 frames", file.path, left_out)
    return match_classes(records, names, file) if names else records


def describe_list(cfg: Any, split: str) -> AnnotationFile:
    """The annotation file of the split train, test or val, of a network for one data set."""
    data = cfg.data
    name = data.lists.get(split, data.test_list)
    return AnnotationFile(
        name,
        path=data.root / name,
        root=data.root,
        source=data.source,
        num_classes=cfg.model.num_classes,
        image_tmpl=data.image_tmpl,
        flow=data.is_flow,
        folder_fps=data.folder_fps,
        max_pixels=data.max_pixels,
        multi_label=cfg.has_several_labels,
    )


def find_labels(train: AnnotationFile, test: AnnotationFile) -> Path:
    """The file of the class names that a network has: those of the training list, if it has any."""
    return train.labels_path if train.labels_path.is_file() else test.labels_path


def read_records(cfg: Any, split: str, class_names: Sequence[str] = ()) -> list[Record]:
    """The records of the split train, val or test. Raises ValueError for bad lines."""
    file = describe_list(cfg, split)._replace(class_names=class_names)
    return read_split(cfg.data, file=file, split=split, seed=cfg.run.seed)


def read_split(data: VideoData, file: AnnotationFile, split: str, seed: int) -> list[Record]:
    """The records of the list of a split: of the training list `data.fraction`, by the seed."""
    records = read_list(file)
    if split != "train" or data.fraction == 1:
        return records
    return [records[k] for k in choose_fraction(list_classes(records), data.fraction, seed)]


def open_record(record: Any, data: Any) -> FrameReader:
    """Opens the video of a record, or its segment: a folder of frames, or a file.

    `data` has the settings of `VideoData`, or those of a scan.
    """
    is_folder = data.source == "frames"
    count = record.num_frames
    return open_path(record.path, data, is_folder, num_frames=count, segment=record.segment)
