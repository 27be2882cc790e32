"""Exports of annotation tools: labels of segments, or of whole videos.

A reader yields a Row for every label of one exported file. Sources of the formats:

* CVAT 1.1 for video, or for images: docs.cvat.ai, "XML annotation format". Frames count from 0; a
  track is not visible from a shape with `outside="1"` on, a skeleton if all its points have it.
* Label Studio, JSON and JSON-MIN: labelstud.io, "Export" and the tags TimelineLabels and
  VideoRectangle. Frames count from 1, at the frameRate of the tag Video; the last one is included.
* ELAN: "EAF Annotation Format 3.0". Milliseconds of the document, whose time 0 is TIME_ORIGIN
  milliseconds after the start of the video.
* VIA 3: robots.ox.ac.uk/~vgg/software/via. `z` is empty or in seconds; `av` has options by number.
"""

import functools
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np

from scripts.data.prepare.class_folders import ClassFolders
from scripts.data.prepare.public_annotations import annotation_errors, find_videos, strip_extension
from utils.files import read_text
from utils.messages import check_choice, format_value
from utils.video.decoders import open_video
from utils.video.media_files import VIDEO_SUFFIXES, FolderScan, has_suffix
from utils.video.reader import Segment, find_time

SUFFIXES = (".xml", ".eaf", ".json")
WHOLE = Segment(0, math.inf)
CHECKBOX = 2  # the type of VIA's attributes that have several options, joined by commas
UPLOAD = re.compile(r"^[0-9a-f]{8}-")  # Label Studio puts it before the name of an uploaded file
PUBLIC = "; annotations of a public data set need --dataset"
MIN_FIELDS = ("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time")


class Row(NamedTuple):
    """A label. The tier is ELAN's, VIA's attribute, Label Studio's control, or CVAT's attribute."""

    tier: str
    video: str  # its path or address in the export
    label: str
    span: Segment = WHOLE
    in_frames: bool = False  # the span counts frames of the video


def read_cvat(root: ElementTree.Element, fps: float) -> Iterator[Row]:
    """Tracks, and tags of consecutive frames. The tier `label` has the labels."""
    tasks = root.iter("task")
    names = {t.findtext("id"): t.findtext("source") or t.findtext("name") for t in tasks}
    source = root.findtext("meta//source") or root.findtext("meta/task/name", "")
    step = int((root.findtext("meta//frame_filter") or "step=1").rpartition("=")[2])
    objects: dict[tuple, list] = defaultdict(list)  # by track or tag: (frame, end, {tier: label})
    for number, track in enumerate(root.iter("track")):
        shapes = sorted(track, key=lambda shape: int(shape.get("frame")))
        frames = [int(shape.get("frame")) for shape in shapes]
        for shape, frame, end in zip(shapes, frames, [*frames[1:], frames[-1] + step]):
            if {part.get("outside") for part in shape.iter()} - {None} != {"1"}:
                labels = read_cvat_labels(track, shape)
                objects[track.get("task_id"), number].append((frame, end, labels))
    for image in root.iter("image"):
        frame = int(image.get("id"))
        for tag in image.iter("tag"):
            key = (image.get("task_id"), tag.get("label"))
            objects[key].append((frame, frame + step, read_cvat_labels(tag, tag)))
    for (task, _), parts in objects.items():
        for tier in parts[0][2]:
            for label, span in join_spans((*part[:2], part[2].get(tier, "")) for part in parts):
                yield Row(tier, names.get(task) or source, label, span, in_frames=True)


def read_cvat_labels(named: ElementTree.Element, shape: ElementTree.Element) -> dict[str, str]:
    attributes = {item.get("name"): item.text or "" for item in shape.findall("attribute")}
    return {"label": named.get("label"), **attributes}


def join_spans(parts: Iterable[tuple[int, int, str]]) -> list[tuple[str, Segment]]:
    """(label, span) of adjacent parts (start, end, label) with one label."""
    result: list[tuple[str, Segment]] = []
    for start, end, label in parts:
        if result and result[-1][0] == label and result[-1][1].end >= start:
            start = result.pop()[1].start
        result.append((label, Segment(start, end)))
    return result


def read_label_studio(tasks: list[dict], fps: float) -> Iterator[Row]:
    """Timeline labels, boxes and choices."""
    for task in tasks:
        video = choose_video(task.get("data", task).values())
        for tier, region in list_regions(task, video):
            if not {"ranges", "sequence", "choices"}.isdisjoint(region):
                kinds = (region.get(key) for key in ("choices", "timelinelabels", "labels"))
                for label in next(filter(None, kinds), [""]):
                    for span in list_spans(region, fps):
                        yield Row(tier, video, label, span)


def list_regions(task: dict, video: str) -> Iterator[tuple[str, dict]]:
    """(control, value). Of several annotations counts the ground truth, or the first."""
    if "annotations" in task:
        done = [item for item in task["annotations"] if not item.get("was_cancelled")]
        for item in sorted(done, key=lambda item: not item.get("ground_truth"))[:1]:
            yield from ((r.get("from_name", ""), r.get("value", {})) for r in item["result"])
        return
    for name, value in task.items():  # JSON-MIN
        if name not in MIN_FIELDS and value != video:
            value = {"choices": [value]} if isinstance(value, str) else value
            regions = value if isinstance(value, list) else [value]
            yield from ((name, region) for region in regions if isinstance(region, dict))


def list_spans(region: dict, fps: float) -> list[Segment]:
    """The spans of a region in seconds."""
    spans = [(part["start"], part["end"]) for part in region.get("ranges", [])]
    starts: list[int] = []
    for key in region.get("sequence", []):
        starts = starts or [key["frame"]]
        if not key["enabled"]:
            spans.append((starts.pop(), key["frame"]))
    if starts:
        spans.append((starts[0], region["framesCount"]))
    rate = region["framesCount"] / region["duration"] if "duration" in region else fps
    if spans and not rate:
        raise ValueError(
            "--fps is missing: the export counts frames, at the frameRate of the tag Video in the "
            "labelling configuration"
        )
    return [Segment((start - 1) / rate, end / rate) for start, end in spans] or [WHOLE]


def read_elan(root: ElementTree.Element, fps: float) -> Iterator[Row]:
    """Annotations of tiers that are aligned with time, for the first video."""
    media = {item.get("MEDIA_URL"): item for item in root.iter("MEDIA_DESCRIPTOR")}
    video = choose_video(media)
    origin = int(media[video].get("TIME_ORIGIN", 0))
    times = {
        slot.get("TIME_SLOT_ID"): (float(slot.get("TIME_VALUE", "nan")) + origin) / 1000
        for slot in root.iter("TIME_SLOT")
    }
    for tier in root.iter("TIER"):
        for item in tier.iter("ALIGNABLE_ANNOTATION"):
            span = Segment(*(times[item.get(f"TIME_SLOT_REF{k}")] for k in (1, 2)))
            label = item.findtext("ANNOTATION_VALUE") or ""
            yield Row(tier.get("TIER_ID"), video, label, span)


def read_via(project: dict, fps: float) -> Iterator[Row]:
    """Labels of time spans and of files, not those of regions of a picture."""
    for item in project["metadata"].values():
        if item["xy"] or not (item["z"] or item["av"]):
            continue
        number = project["view"][str(item["vid"])]["fid_list"][0]
        video = project["file"][str(number)]["fname"]
        span = Segment(item["z"][0], item["z"][-1]) if item["z"] else WHOLE
        if not item["av"]:
            raise ValueError(f"--annotations: {video}, {span} has no label")
        for key, value in item["av"].items():
            attribute = project["attribute"][key]
            for option in value.split(",") if attribute["type"] == CHECKBOX else [value]:
                yield Row(attribute["aname"], video, attribute["options"].get(option, option), span)


def choose_video(names: Iterable[Any]) -> str:
    """The first of some values that is the name of a video."""
    for name in names:
        if isinstance(name, str) and has_suffix(name, VIDEO_SUFFIXES):
            return name
    raise ValueError(f"--annotations: the labels are of something that is no video{PUBLIC}")


def read_export(file: Path, fps: float) -> list[Row]:
    """All labels of a file. Raises ValueError if no tool has written it so."""
    text = read_text(file, f"--annotations: {file}")
    with annotation_errors(file, advice=PUBLIC):
        if has_suffix(file.name, (".json",)):
            value = json.loads(text)
            rows = (read_label_studio if isinstance(value, list) else read_via)(value, fps)
        else:
            value = ElementTree.fromstring(text)
            rows = (read_elan if value.tag == "ANNOTATION_DOCUMENT" else read_cvat)(value, fps)
        result = [row._replace(span=Segment(*map(float, row.span))) for row in rows]
        if not all(isinstance(text, str) for row in result for text in row[:3]):
            raise ValueError
        return result


def read_exports(
    path: Path, root: Path, tier: str, fps: float
) -> tuple[ClassFolders, dict[str, str]]:
    """The lines `video` or `video start end` by class, and {line: its video}.

    `path` is an exported file or a folder of them, `root` that of the videos. `tier` names one of
    several tiers. `fps` is the rate at which an export counts frames; 0: CVAT's are the frames of
    the video. Raises ValueError for a label without text, time or video, or for two labels of a
    line, or one class.
    """
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    files = [file for file in files if has_suffix(file.name, SUFFIXES)]
    if not files:
        tools = "CVAT (.xml), ELAN (.eaf), Label Studio or VIA (.json)"
        raise ValueError(f"--annotations: {path} has no export of {tools}{PUBLIC}")
    rows = choose_tier([row for file in files for row in read_export(file, fps)], tier)
    videos = find_videos(root, with_folder=False)
    labels: dict[str, str] = {}
    sources = {}
    for row in rows:
        video = find_video(row.video, videos, root)
        if not video.isprintable():
            raise ValueError(f"--videos: {format_value(video)} cannot be printed; rename it")
        line = video if row.span == WHOLE else f"{video} {find_segment(row, root / video, fps)}"
        label = row.label.strip()
        if not label or not label.isprintable():
            text = format_value(label)
            raise ValueError(f"--annotations: {line} has the label {text}, which is no name")
        if labels.setdefault(line, label) != label:
            raise ValueError(f"--annotations: {line} has two labels, {labels[line]} and {label}")
        sources[line] = video
    names = set(labels.values())
    classes = {name: [line for line in labels if labels[line] == name] for name in names}
    if len(classes) < 2:
        raise ValueError(f"--annotations: all labels are {label}, but a data set needs two classes")
    nothing = FolderScan([], others=[], system=[])
    return ClassFolders(classes, scan=nothing, twins=[], nested=[], empty=[]), sources


def choose_tier(rows: list[Row], tier: str) -> list[Row]:
    tiers = sorted({row.tier for row in rows})
    if not tiers:
        raise ValueError("--annotations: the export has no label")
    if not tier and len(tiers) > 1:
        raise ValueError(f"--tier is missing: choose one of {', '.join(tiers)}")
    check_choice(tier or tiers[0], tiers, "--tier")
    rows = [row for row in rows if row.tier == (tier or tiers[0])]
    if len({row.span == WHOLE for row in rows}) > 1:
        raise ValueError("--annotations: some labels are of whole videos, others of time spans")
    return rows


def find_video(name: str, videos: Mapping[str, list[str]], root: Path) -> str:
    """The path of the video that an export names, by its file name and, if needed, its folder."""
    *_, folder, file = re.split(r"[/\\]|\?d=", f"//{unquote(name)}")
    key = strip_extension(file)
    paths = videos.get(key) or videos.get(UPLOAD.sub("", key), [])
    if len(paths) > 1:
        paths = [path for path in paths if Path(path).parent.name == folder] or paths
    if len(paths) != 1:
        raise ValueError(f"--videos: {root} has {len(paths)} videos {file}, which the export names")
    return paths[0]


def find_segment(row: Row, video: Path, fps: float) -> Segment:
    """The span of a row in seconds, to the millisecond."""
    span = row.span
    if row.in_frames:
        times = [] if fps else read_times(video)
        span = Segment(*(k / fps if fps else times[min(int(k), len(times) - 1)] for k in span))
    if not 0 <= span.start < span.end < math.inf:
        raise ValueError(f"--annotations: {row.label} of {video} has no time span: {row.span}")
    return Segment(round(span.start, 3), round(span.end, 3))


@functools.cache
def read_times(video: Path) -> list[float]:
    """The seconds from the first frame to each, and to the end."""
    with open_video(video) as frames:
        if frames.stamps is not None:  # they choose the frames of a segment
            return frames.stamps.tolist()
        return find_time(frames, np.arange(len(frames) + 1)).tolist()
