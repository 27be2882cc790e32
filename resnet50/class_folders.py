"""Class folders of images: which labels they have, the same in every split.

The labels count the class folders of the training in the order of their names. A training writes
them into its run folder, a line each. So a test split that lacks a class keeps the labels.
"""

import os
from pathlib import Path
from typing import Optional

from utils.files import read_text, report_write_errors, write_text
from utils.log import log
from utils.runtime import Runtime
from utils.video.media_files import IMAGE_SUFFIXES, has_suffix, is_system_name

FILE = "class_folders.txt"  # in the run folder, beside the checkpoints


def find_classes(train: Path, split: Path, num_classes: int) -> list[str]:
    """The names of the class folders in the order of their labels; empty if they are not known.

    They are the folders of `train`; without these, the `num_classes` names in labels.txt beside it,
    or as many folders of `split`.
    Networks of mindspore-ai/models have 1001 classes for the 1000 of ImageNet.
    """
    if train.is_dir():
        return list_class_folders(train)
    own = list_class_folders(split) if split.is_dir() else []
    labels = train.with_name("labels.txt")
    listed = sorted(read_names(labels)) if labels.is_file() else []
    numbers = (num_classes, 1000 if num_classes == 1001 else num_classes)
    if len(listed) in numbers and set(own) <= set(listed):
        return listed
    return own if len(own) in numbers else []


def read_run_classes(run: Optional[Path]) -> list[str]:
    """The class folders that a training wrote into its folder; empty if it wrote none."""
    return read_names(run / FILE) if run is not None and (run / FILE).is_file() else []


def read_names(path: Path) -> list[str]:
    """The lines of a file, each as it is: the name of a folder."""
    return read_text(path, str(path), "surrogateescape").removesuffix("\n").split("\n")


def write_run_classes(run: Path, classes: list[str], rt: Runtime) -> None:
    """Writes the class folders of a training into its folder, if all are known.

    Raises ValueError if a stopped run in the folder has other classes.
    """
    if not classes or not all(classes):
        return
    odd = next((name for name in classes if "\n" in name), None)
    if odd:
        raise ValueError(f"data.train: {odd!r} has a line break in its name; rename it")
    if read_run_classes(run) not in ([], classes):
        raise ValueError(
            f"run.out: {run} holds a run with the class folders of {run / FILE}, and data.train "
            "has others now; choose another --run.out"
        )
    if rt.is_main_process:
        write_list(run / FILE, classes)


def copy_run_classes(run: Path, folder: Path) -> None:
    """Copies the class folders of a training to a file of its network, which is in `folder`."""
    classes = read_run_classes(run)
    if not classes or read_run_classes(folder) == classes:
        return
    if (folder / FILE).exists():
        log.warning("%s is of another network; it is left as it is", folder / FILE)
        return
    write_list(folder / FILE, classes)


def write_list(path: Path, classes: list[str]) -> None:
    with report_write_errors(path):
        write_text(path, "".join(f"{name}\n" for name in classes))


def list_class_folders(path: Path) -> list[str]:
    """The names of the class folders, sorted; hidden and system folders are none."""
    folders = (entry.name for entry in os.scandir(path) if entry.is_dir())
    return sorted(name for name in folders if not is_system_name(name))


def list_images(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the images of a class folder by their bytes, and those of all else in it."""
    names = sorted(os.listdir(folder), key=os.fsencode)
    images = [n for n in names if has_suffix(n, IMAGE_SUFFIXES) and not is_system_name(n)]
    return images, sorted({*names} - {*images})
