"""`index.html` of a report: numbers, classes, confusion, calibration, frames of mistakes and hits.

The page is one file with its style and script, which loads nothing: a policy in it permits its own
script only, by its hash, and no connection. `report.html` is its template, which escapes all texts.
Its size is bounded: it has counts of classes, LISTED mistakes, and frames of SHOWN mistakes and
hits. The tables beside it have every video.
"""

import base64
import csv
import hashlib
import io
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union
from urllib.parse import quote

import numpy as np
from PIL import Image

from utils.data.rows import EvalRows
from utils.evaluate.label_space import LabelSpace
from utils.evaluate.metrics import compute_interval
from utils.files import open_replacement, report_write_errors, write_text
from utils.messages import escape_control
from utils.video.reader import VideoError
from utils.weights.description import VERSION

TEMPLATE = Path(__file__).with_name("report.html")
SCRIPT = Path(__file__).with_name("report.js")
SHOWN = 20  # mistakes and hits with frames
LISTED = 1000  # mistakes
WORST_CLASSES = 10  # in report.json
FRAMES = 3  # of a video
SIDE = 192  # pixels of the longer side of a frame
QUALITY = 75  # of JPEG
FILES = ("classes.csv", "report.json", "scores.csv", "wrong.csv")  # beside the page
OWN = {"report.json": r'(?s)\{.*"worst_classes": ', "scores.csv": "path,labels?,predicted,correct,"}
COLUMNS = {
    "average_precision": "average precision",
    "recall": "recall",
    "precision": "precision",
    "f1": "F1",
    "top5": "top-5",
}
# A mistake or a hit: sample, its label or labels, those predicted or, of a hit, the second class
Label = Union[int, Sequence[int], None]
Entry = tuple[int, Label, Label]


class Samples(NamedTuple):
    """The samples of an evaluation, by number: names, labels if known before, class names.

    `rows` and `space`, if there are files, read frames of a sample.
    """

    paths: Sequence[str] = ()
    labels: Sequence[Any] = ()  # of `annotation_file.Label`
    classes: Sequence[str] = ()  # "" for a class without a name
    rows: Optional[EvalRows] = None
    space: Optional[LabelSpace] = None


def write_classes(
    folder: Path,
    samples: Samples,
    result: dict[str, Any],
    values: dict[str, Any],
    classes: Sequence[dict],
    mistakes: Sequence[Entry],
    hits: Sequence[Entry],
    probabilities: Optional[np.ndarray] = None,
    charts: Optional[dict[str, Any]] = None,
) -> dict[str, Any]:
    """Writes classes.csv, report.json and the page; returns what the page shows.

    `values` are further numbers beside `result`; `mistakes` come with the most confident first,
    `hits` with the least confident. The fourth column of `classes` decides which are the worst.
    Of samples with one label: `probabilities` (n, classes), and `charts`: `counts` (true,
    predicted), `pairs` of `list_pairs` and `bins` of `compute_bins`.
    """
    write_csv(folder / "classes.csv", list(classes[0]), (row.values() for row in classes))
    key = list(classes[0])[3]
    worst = sorted((row for row in classes if row["videos"]), key=lambda row: row[key])
    report = {**result, **values, "worst_classes": worst[:WORST_CLASSES]}
    with report_write_errors(folder, "--report"):
        write_text(folder / "report.json", json.dumps(report, indent=1) + "\n")
    names = [escape_control(name) or f"class {k}" for k, name in enumerate(samples.classes)]
    listed, shown = (
        [describe_entry(samples, entry, names, folder, probabilities) for entry in entries]
        for entries in (mistakes[:LISTED], hits[:SHOWN])
    )
    for item in (*listed[:SHOWN], *shown):
        item["pictures"] = read_pictures(samples, item["sample"])
    # The table of classes, those with the lowest first value first
    keys = [key for key in COLUMNS if any(row.get(key) is not None for row in classes)]
    rows = []
    for row in classes:
        count = round((row["recall"] or 0) * row["videos"])  # multi-label: at the threshold
        rows.append({**row, "cells": [row[key] for key in keys], "hits": count})
    if keys:
        rows.sort(key=lambda row: (row["cells"][0] is None, row["cells"][0]))
    page = {
        "name": "",
        "folder": "",
        "result": {**result, **values},
        "names": names,
        "videos": [row["videos"] for row in classes],
        "chance": compute_chance(result, [row["videos"] for row in classes]),
        "columns": [COLUMNS[key] for key in keys],
        "rows": rows,
        **(charts or {}),
        "shown": SHOWN,
        "mistake_count": len(mistakes),
        "mistakes": listed,
        "hits": shown,
        "files": sorted([*FILES, *(["confusion.csv"] if charts else [])]),
    }
    write_index(folder, {"": page})
    return page


def compute_chance(result: dict[str, Any], videos: Sequence[int]) -> dict[str, tuple[float, bool]]:
    """{metric of `result`: (its value by guessing, whether it is no better)}.

    `videos` are those of each class. An accuracy is no better if its 95 % interval has that of a
    class at random. The average precision of videos in any order is the fraction that the class
    has.
    """
    total = result.get("videos")
    if not total:
        return {}
    if "map" in result:
        chance = float(np.mean([count / total for count in videos if count]))
        return {"map": (chance, result["map"] <= chance)}
    parts = {}
    for key, guesses in (("top1", 1), ("top5", 5)):
        if result.get(key) is not None:
            chance = min(guesses / len(videos), 1.0)
            low, _ = compute_interval(round(result[key] * total), total)
            parts[key] = (chance, low <= chance)
    return parts


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Iterable]) -> None:
    """Raises ValueError, and keeps the old file, if the disk is full or not writable."""
    with report_write_errors(path, "--report"), open_replacement(path, newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def divide(count: int, total: int) -> Optional[float]:
    return round(float(count / total), 6) if total else None


def describe_entry(
    samples: Samples,
    entry: Entry,
    names: Sequence[str],
    folder: Path,
    probabilities: Optional[np.ndarray],
) -> dict[str, Any]:
    """A sample with the names of its classes; without pictures.

    Its link is relative, of a segment with its times; empty without a file.
    """
    sample, *labels = entry
    link = ""
    record = samples.rows.records[sample] if samples.rows is not None else None
    if record and os.path.exists(record.path):  # not one image of many in a file
        relative = os.path.relpath(os.path.abspath(record.path), os.path.abspath(folder))
        link = quote(os.fsencode(relative))
        if record.segment:
            link += f"#t={record.segment.start:g},{record.segment.end:g}"
    groups = [[] if label is None else np.atleast_1d(label).tolist() for label in labels]
    texts = [", ".join(names[label] for label in group) or "no label" for group in groups]
    item: dict[str, Any] = {
        "sample": sample,
        "path": escape_control(samples.paths[sample]),
        "link": link,
        "labels": groups[0],
        "others": groups[1],
        "pictures": None,
    }
    for key, label, text in zip(("true", "other"), labels, texts):
        item[key] = None if label is None else text
        item[f"{key}_probability"] = None
        if probabilities is not None and label is not None:
            item[f"{key}_probability"] = float(probabilities[sample, label].round(4))
    return item


def read_pictures(samples: Samples, sample: int) -> Optional[list[str]]:
    """Small JPEGs of a sample as evaluated, as data addresses; none if it cannot be read.

    Of three frames from the start to the end, or of one if clips have one. None if there are no
    files.
    """
    rows = samples.rows
    if rows is None or samples.space is None:
        return None
    try:
        clips = samples.space.preview_frames(rows.make_views(rows.records[sample], sample))
    except VideoError:  # it could be read before
        return []
    parts = np.linspace(0, 1, min(FRAMES, clips.shape[1]))
    clip, frame = (np.rint(parts * (size - 1)).astype(int) for size in clips.shape[:2])
    pictures = []
    for pixels in clips[clip, frame]:
        picture = Image.fromarray(pixels)
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
    import jinja2

    template = jinja2.Template(TEMPLATE.read_text(encoding="utf-8"), autoescape=True)
    parts = []
    data = []
    for name, part in sets.items():
        address = quote(os.fsencode(name)) + "/" if name else ""
        parts.append({**part, "name": escape_control(name), "folder": address})
        # (true class, predicted class, videos) of the confusion matrix
        counts = part.get("counts", np.zeros((0, 0), int))
        cells = [[*cell, int(counts[tuple(cell)])] for cell in np.argwhere(counts).tolist()]
        data.append({"names": part["names"], "cells": cells})
    script = SCRIPT.read_text(encoding="utf-8")
    page = template.render(
        sets=parts,
        average=average or {},
        date=time.strftime("%Y-%m-%d %H:%M"),
        version=VERSION,
        data=data,
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    path = folder / "index.html"
    with report_write_errors(path, "--report"):
        write_text(path, page)
