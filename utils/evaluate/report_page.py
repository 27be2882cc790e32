"""`index.html` of a report: numbers, classes, confusion, calibration, frames of mistakes and hits.

Its size is bounded: it has counts of classes, LISTED mistakes, and frames of SHOWN mistakes and
hits. The tables beside it have every video.
"""

import base64
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union
from urllib.parse import quote

import numpy as np
from PIL import Image

from utils.messages import escape_control
from utils.pages import write_page

if TYPE_CHECKING:
    from utils.evaluate.report import Samples

SCRIPT = Path(__file__).with_name("report.js")
SHOWN = 20  # mistakes and hits with frames
LISTED = 1000  # mistakes
FRAMES = 3  # of a video
SIDE = 192  # pixels of the longer side of a frame
QUALITY = 75  # of JPEG
FILES = (".csv", ".png", ".json")  # beside the page
Label = Union[int, Sequence[int], None]


class Entry(NamedTuple):
    """A mistake or a hit: its label or labels, and those predicted or, of a hit, the second class.

    Probabilities are None if there are several labels.
    """

    sample: int
    true: Label
    other: Label
    true_probability: Optional[float] = None
    of_other: Optional[float] = None


def describe_report(
    folder: Path,
    samples: "Samples",
    result: dict[str, Any],
    classes: Sequence[dict],
    mistakes: Sequence[Entry],
    hits: Sequence[Entry],
    frames: dict[int, Optional[np.ndarray]],
) -> dict[str, Any]:
    """What the page shows of one data set, without confusion and calibration.

    `classes` are rows of `classes.csv`; `mistakes` come with the most confident first, `hits` with
    the least confident; `frames` are those of the samples with pictures, None if unreadable.
    """

    def describe(entry: Entry) -> list:
        sample = entry.sample
        path = escape_control(samples.paths[sample])
        link = make_link(samples, sample, folder)
        pictures = encode_frames(frames[sample]) if sample in frames else None
        return [path, link, *entry[1:], pictures]

    columns = list(classes[0])[2:]  # after the number and the name
    return {
        "name": "",
        "folder": "",
        "result": result,
        "names": [escape_control(name) for name in samples.classes],
        "columns": columns,
        "classes": [[row[column] for column in columns] for row in classes],
        "wrong": len(mistakes),
        "shown": SHOWN,
        "mistakes": [describe(entry) for entry in mistakes[:LISTED]],
        "hits": [describe(entry) for entry in hits[:SHOWN]],
        "files": sorted(path.name for path in folder.iterdir() if path.suffix in FILES),
    }


def make_link(samples: "Samples", sample: int, folder: Path) -> str:
    """A relative address of the sample's file, of a segment with its times; "" without a file."""
    path, times = samples.find_file(sample) if samples.find_file else ("", "")
    if not path or not os.path.exists(path):  # one image of many in a file
        return ""
    relative = os.path.relpath(os.path.abspath(path), os.path.abspath(folder))
    return quote(os.fsencode(relative)) + times


def encode_frames(frames: Optional[np.ndarray]) -> list[str]:
    """Small JPEGs of some of the frames uint8 (T, H, W, 3), as data addresses; none for None."""
    if frames is None:
        return []
    pictures = []
    for k in np.linspace(0, len(frames) - 1, min(FRAMES, len(frames))).astype(int):
        picture = Image.fromarray(frames[k])
        picture.thumbnail((SIDE, SIDE))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=QUALITY)
        data = base64.b64encode(file.getvalue()).decode()
        pictures.append(f"data:image/jpeg;base64,{data}")
    return pictures


def write_index(folder: Path, sets: dict[str, dict], average: Optional[dict] = None) -> None:
    """Writes `index.html` of the data sets; those with a name have a folder of this name.

    `average` has the means of several. Raises ValueError if the file cannot be written.
    """
    parts = [
        {**part, "name": escape_control(name), "folder": quote(os.fsencode(name))}
        for name, part in sets.items()
    ]
    data = {"title": "Evaluation report", "average": average, "sets": parts}
    write_page(folder / "index.html", script=SCRIPT, data=data, option="--report")
