"""`index.html` of a report: numbers, classes, confusion, calibration, frames of mistakes and hits.

Its size is bounded: it has counts of classes, LISTED mistakes, and frames of SHOWN mistakes and
hits. The tables beside it have every video.
"""

import base64
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional
from urllib.parse import quote

import numpy as np
from PIL import Image

from utils.messages import escape_control
from utils.pages import write_page

if TYPE_CHECKING:
    from utils.evaluate.report import Predictions, Samples

SCRIPT = Path(__file__).with_name("report.js")
SHOWN = 20  # mistakes and hits with frames
LISTED = 1000  # mistakes
FRAMES = 3  # of a video
SIDE = 192  # pixels of the longer side of a frame
QUALITY = 75  # of JPEG
# Numbers of a class, in the order in which report.js reads them
CLASS_NUMBERS = ("videos", "top1", "top5", "precision", "recall", "f1", "top1_low", "top1_high")


def find_hits(predictions: "Predictions") -> list[int]:
    """The SHOWN correct samples of the lowest confidence, the lowest first."""
    numbers = np.flatnonzero(predictions.readable & (predictions.ranks == 0))
    order = np.argsort(predictions.confidence[numbers], kind="stable")
    return numbers[order[:SHOWN]].tolist()


def describe_report(
    folder: Path,
    samples: "Samples",
    predictions: "Predictions",
    result: dict,
    classes: Sequence[dict],
    counts: np.ndarray,
    bins: Sequence[list],
    wrong: Sequence[int],
    frames: dict[int, Optional[np.ndarray]],
) -> dict[str, Any]:
    """What the page shows of one data set.

    `wrong` are the wrong samples, the most confident first; `frames` those of samples with
    pictures, None if they cannot be read. The others are the tables of the report.
    """
    hits = find_hits(predictions)
    hidden = {"worst_classes", "sets"}
    true, predicted = np.nonzero(counts)

    def describe(sample: int, other: Optional[int]) -> list:
        label = int(predictions.labels[sample])
        probabilities = predictions.probabilities[sample]
        return [
            escape_control(samples.paths[sample]),
            make_link(samples, sample, folder),
            label,
            other,
            round(float(probabilities[label]), 4),
            None if other is None else round(float(probabilities[other]), 4),
            encode_frames(frames[sample]) if sample in frames else None,
        ]

    return {
        "name": "",
        "folder": "",
        "result": {name: value for name, value in result.items() if name not in hidden},
        "names": [escape_control(name) for name in samples.classes],
        "classes": [[row[name] for name in CLASS_NUMBERS] for row in classes],
        "confusion": np.stack([true, predicted, counts[true, predicted]], 1).ravel().tolist(),
        "bins": [[value if value != "" else None for value in row] for row in bins],
        "wrong": len(wrong),
        "shown": SHOWN,
        "mistakes": [describe(k, int(predictions.predicted[k])) for k in wrong[:LISTED]],
        "hits": [describe(k, find_second(predictions, k)) for k in hits],
        "files": sorted(path.name for path in folder.iterdir() if path.suffix in FILES),
    }


FILES = (".csv", ".png", ".json")  # beside the page


def find_second(predictions: "Predictions", sample: int) -> Optional[int]:
    """The second class of a sample, None if there is only one class."""
    order = np.argsort(-predictions.probabilities[sample], kind="stable")
    return int(order[order != predictions.predicted[sample]][0]) if len(order) > 1 else None


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
