"""Where copies of listed videos are: a folder that has the lists and videos of `data.root`."""

import os
from pathlib import Path
from typing import Union

from utils.data.annotation_file import AnnotationFile, Record, choose_output_names, format_label
from utils.files import copy_output, write_text


def choose_list_paths(files: list[AnnotationFile], out: Path) -> list[Path]:
    """The paths of the new lists: below `out` the names in the config file.

    If one of these is absolute or begins with `..`, the new lists have names of their own.
    """
    names = [Path(os.path.normpath(file.name)) for file in files]
    is_below = all(not name.is_absolute() and name.parts[0] != ".." for name in names)
    return [out / name for name in (names if is_below else choose_output_names(files))]


def name_copy(record: Record, file: AnnotationFile) -> Path:
    """The path in the new list: that of the video; a segment is `PATH_START_END`."""
    segment = str(record.segment).split() if record.segment else []
    return get_path_below(file.root, "_".join([record.path, *segment]))


def get_path_below(folder: Path, path: Union[str, Path]) -> Path:
    """The path relative to a folder, without the `..` of a path outside it."""
    return Path(*(part for part in Path(os.path.relpath(path, folder)).parts if part != ".."))


def write_list(file: AnnotationFile, target: Path, lines: list[tuple[str, Record]]) -> None:
    """Writes (text, record) as lines `text label`; copies the class names beside the old list.

    Raises ValueError if there is no line.
    """
    if not lines:
        raise ValueError(f"{file.path} has no video that can be read")
    text = "".join(f"{text} {format_label(record.label)}\n" for text, record in lines)
    write_text(target, text, "--out")
    class_names = file.path.with_name("labels.txt")
    if class_names.is_file():
        copy_output(class_names, target.with_name("labels.txt"))
