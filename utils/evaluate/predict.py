"""Video inference: windows of a video, views, probabilities, records, tables and files.

A network's `predict.py` defines a `Head` for each data set of the network. Frames and views are
those of the network's evaluation.
"""

import abc
import contextlib
import csv
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional

import numpy as np

from utils.data.class_names import find_class_names, read_class_names
from utils.evaluate.scores import choose_clips_per_pass, video_scores
from utils.files import open_replacement, report_write_errors, write_text
from utils.messages import escape_control, format_line
from utils.process_pool import Part
from utils.progress import Progress, track
from utils.video.reader import FrameReader, VideoError

if TYPE_CHECKING:
    from utils.inference.scorer import Scorer

Job = tuple[str, str]  # a video, and the name of its files
PREDICTIONS = "predictions"  # the files of all videos, PREDICTIONS.csv and PREDICTIONS.jsonl
PART_FILE = f"{PREDICTIONS}.part-{{}}.jsonl"
DEFAULT_FPS = 30.0  # of a video without a frame rate
# Seconds: a longer video is divided into windows
LONG_VIDEO = 30.0
WINDOW = 10.0
TITLE_LENGTH = 60  # characters of a file's name in a title
MAX_CLASS_NAME = 200  # characters of a class name in a table
NAME_BYTES = 255 - len("_timeline.png.tmp") - 5  # of 255 that a file's name may have; 5: a number


@dataclass(frozen=True)
class Window:
    """A part of a video, in frames; `fps` is 0 if the video has no frame rate."""

    start: int
    length: int
    fps: float

    def __len__(self) -> int:
        return self.length

    @property
    def span(self) -> tuple[float, float]:
        """Start and end in seconds."""
        fps = self.fps or DEFAULT_FPS
        return self.start / fps, (self.start + self.length) / fps


class Head(abc.ABC):
    """The classes of one data set, and the views with which they are predicted."""

    name = ""  # of the data set, if the network has several
    names: Sequence[str] = ()  # of the classes, once `assign_class_names` has run
    names_file: Optional[Path] = None  # a file of class names, used if it exists
    builtin_names = ""  # the list in utils/labels
    classes = 0
    clips = crops = 1
    raw_scores = True  # whether the network returns raw scores, not probabilities
    clips_per_pass = 0  # as in `video_scores`

    @abc.abstractmethod
    def frame_indices(self, window: Window) -> np.ndarray:
        """The frames of all clips, counted from the window's start; any shape."""

    @abc.abstractmethod
    def make_views(self, frames: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The views uint8 (V, ...).

        `positions` has the shape of `frame_indices` and holds their indices in `frames`.
        """

    def select_preview_views(self, views: np.ndarray) -> np.ndarray:
        """The views (clips, ...) of the middle crop of each clip.

        `views` are the crops of the first clip, then of the second, ...
        """
        return views[self.crops // 2 :: self.crops]

    def preview_frames(self, views: np.ndarray) -> np.ndarray:
        """The frames of the middle crop of each clip: uint8 (clips, T, H, W, 3).

        Views are (V, 3, T, H, W).
        """
        return self.select_preview_views(views).transpose(0, 2, 3, 4, 1)

    def find_names(self) -> Sequence[str]:
        """Class names without a file from the user; empty if there are none."""
        return find_class_names(self.names_file, self.builtin_names, self.classes)

    def list_names(self) -> list[str]:
        """A name for each class, all empty if there are none."""
        return list(self.find_names()) or [""] * self.classes

    def select_output(self, scorer: "Scorer") -> "Scorer":
        """The scorer of these classes only."""
        return scorer

    def predict_probs(self, scorer: "Scorer", views: np.ndarray) -> np.ndarray:
        """Probabilities (classes,): the mean over views; of raw scores, the softmax of the mean."""
        result = video_scores(self.select_output(scorer), views[None], self.clips_per_pass)
        scores = result[0].astype(np.float64)
        return softmax(scores) if self.raw_scores else scores


class WindowResult(NamedTuple):
    """One window, with the views and the probabilities (classes,) of each head."""

    window: Window
    views: list[np.ndarray]
    probabilities: list[np.ndarray]

    @property
    def confidence(self) -> float:
        return max(float(probs.max()) for probs in self.probabilities)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def assign_class_names(heads: Sequence[Head], labels: str) -> None:
    """Sets `names` of the heads, from the file `labels` (head after head) or without it.

    Raises ValueError if the file has another number of names than the heads have classes.
    """
    if not labels:
        for head in heads:
            head.names = head.find_names()
        return
    if not Path(labels).is_file():
        raise ValueError(f"--labels: {labels} does not exist")
    classes = sum(head.classes for head in heads)
    names = read_class_names(Path(labels), classes, f"--labels {labels}")
    for head in heads:
        head.names = names[: head.classes]
        names = names[head.classes :]


def split_into_windows(
    source: FrameReader, seconds: Optional[float], step: Optional[float]
) -> list[Window]:
    """The windows of a video, all of one length; the last one ends with the video.

    `seconds` 0 is the whole video; None divides only long videos. `step` is the time from one start
    to the next, by default `seconds`.
    """
    fps = source.fps or DEFAULT_FPS
    if seconds is None:
        seconds = WINDOW if len(source) > LONG_VIDEO * fps else 0.0
    length = max(round(seconds * fps), 1)
    if seconds == 0 or length >= len(source):
        return [Window(0, len(source), source.fps)]
    stride = max((step or seconds) * fps, 1.0)
    last_start = len(source) - length
    starts = [round(k * stride) for k in range(int(last_start / stride) + 1)]
    starts = [start for start in starts if start < last_start]
    return [Window(start, length, source.fps) for start in (*starts, last_start)]


def run_windows(
    scorer: "Scorer", source: FrameReader, windows: Sequence[Window], heads: Sequence[Head]
) -> Iterator[WindowResult]:
    """Predicts window after window. Only one window's frames are in memory; decoding goes forward.

    All heads have the same number of clips per pass, so that one graph is compiled.
    """
    numbers_of_views = [head.clips * head.crops for head in heads]
    for head in heads:
        head.clips_per_pass = choose_clips_per_pass(1, *numbers_of_views, device=scorer.device)
    plans = [[head.frame_indices(window) for head in heads] for window in windows]
    needed = [
        window.start + np.unique(np.concatenate([indices.ravel() for indices in plan]))
        for window, plan in zip(windows, plans)
    ]
    for window, plan, numbers, frames in zip(windows, plans, needed, read_forward(source, needed)):
        views = []
        for head, indices in zip(heads, plan):
            unique, positions = np.unique(indices, return_inverse=True)
            chosen = np.searchsorted(numbers, window.start + unique)
            head_frames = frames if len(chosen) == len(frames) else frames[chosen]
            views.append(head.make_views(head_frames, positions.reshape(indices.shape)))
        yield WindowResult(
            window, views, [h.predict_probs(scorer, v) for h, v in zip(heads, views)]
        )


def read_forward(source: FrameReader, needed: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """The frames (n, H, W, C) of each of the ascending lists `needed`.

    Frames that a later list needs too are kept: some readers start the video again to return an
    earlier frame.
    """
    if len(needed) == 1:
        yield source.frames(needed[0])
        return
    union = np.unique(np.concatenate(needed))
    frames_by_number = {}
    end = 0
    for numbers, following in zip(needed, [*needed[1:], np.array([np.inf])]):
        new_end = int(np.searchsorted(union, numbers[-1], "right"))
        if new_end > end:
            new_numbers = union[end:new_end]
            end = new_end
            frames_by_number.update(zip(new_numbers.tolist(), source.frames(new_numbers)))
        yield np.stack([frames_by_number[number] for number in numbers.tolist()])
        frames_by_number = {
            number: frame for number, frame in frames_by_number.items() if number >= following[0]
        }


def rank_classes(head: Head, probabilities: np.ndarray, top: int) -> list[dict]:
    """The `top` classes of one head, the most probable first."""
    return [
        {
            **({"set": head.name} if head.name else {}),
            "label": int(label),
            "name": head.names[label] if head.names else "",
            "probability": round(float(probabilities[label]), 6),
        }
        for label in np.argsort(-probabilities, kind="stable")[:top]
    ]


def rank_all(heads: Sequence[Head], probabilities: Sequence[np.ndarray], top: int) -> dict:
    """`top`; for several heads `sets`, and `joint`: all classes, each set with the same weight."""
    if len(heads) == 1:
        return {"top": rank_classes(heads[0], probabilities[0], top)}
    pairs = list(zip(heads, probabilities))
    joint = [entry for head, p in pairs for entry in rank_classes(head, p / len(heads), top)]
    joint.sort(key=lambda entry: -entry["probability"])
    return {
        "joint": joint[:top],
        "sets": {head.name: rank_classes(head, p, top) for head, p in pairs},
    }


def list_columns(heads: Sequence[Head]) -> list[str]:
    """A heading for each class of each head: its name, or its number."""
    return [
        f"{head.name}/{name}" if head.name else name
        for head in heads
        for name in (head.names or map(str, range(head.classes)))
    ]


class Predictor:
    """Predicts videos with one network and writes the results into `folder`.

    Records list the `top` classes; `window` and `step` are the seconds of `split_into_windows`.
    """

    def __init__(
        self,
        scorer: "Scorer",
        heads: Sequence[Head],
        open_source: Callable[[str], FrameReader],
        folder: Path,
        top: int,
        window: Optional[float] = None,
        step: Optional[float] = None,
    ):
        self.scorer = scorer
        self.heads = heads
        self.open = open_source
        self.folder = folder
        self.top = top
        self.window = window
        self.step = step

    def run_jobs(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, dict]]:
        """The record of each job; that of a broken video has an `error`."""
        for job in jobs:
            try:
                yield job, self.predict(*job)
            except VideoError as error:
                yield job, {"video": job[0], "error": str(error)}

    def predict(self, video: str, name: str) -> dict:
        """The record of one video; writes its pictures and tables."""
        with self.open(video) as source:
            windows = split_into_windows(source, self.window, self.step)
            best = None
            by_window = []
            results = run_windows(self.scorer, source=source, windows=windows, heads=self.heads)
            hidden = len(windows) == 1
            for result in track(
                results, name=name, total=len(windows), unit="windows", leave=False, hidden=hidden
            ):
                by_window.append(result.probabilities)
                if best is None or result.confidence > best.confidence:
                    best = result
            record = {"video": video, "frames": len(source), "fps": round(source.fps, 3)}
        record["views"] = ", ".join(f"{head.clips}x{head.crops}" for head in self.heads)
        by_head = [np.stack(probs) for probs in zip(*by_window)]  # (windows, classes) each
        means = [probs.mean(axis=0) for probs in by_head]
        record.update(rank_all(self.heads, means, self.top))
        record["picture"] = self.draw_preview(video, name=name, result=best, windows=len(windows))
        if len(windows) > 1:
            record.update(self.write_timeline(video, name=name, windows=windows, by_head=by_head))
        return record

    def draw_preview(self, video: str, name: str, result: WindowResult, windows: int) -> str:
        from utils.evaluate import predict_plots

        title = format_line(Path(video).name, TITLE_LENGTH)
        if windows > 1:
            start, end = result.window.span
            title += f", {start:.1f} to {end:.1f} s, the most confident of {windows} windows"
        rows = []
        for head, views, probs in zip(self.heads, result.views, result.probabilities):
            frames = head.preview_frames(views)
            times = preview_times(head, result.window, frames.shape[:2])
            entries = rank_classes(head, probs, self.top)
            rows.append(
                predict_plots.PreviewRow(
                    describe_views(head), frames=frames, entries=entries, times=times
                )
            )
        path = self.folder / f"{name}.png"
        predict_plots.draw_preview(path, title, rows)
        return str(path)

    def write_timeline(
        self, video: str, name: str, windows: list[Window], by_head: list[np.ndarray]
    ) -> dict:
        """Writes a table of all classes and a plot; returns their names and the best classes."""
        from utils.evaluate import predict_plots

        spans = [window.span for window in windows]
        table = self.folder / f"{name}.csv"
        plot = self.folder / f"{name}_timeline.png"
        with open_replacement(table, newline="") as file:
            rows = np.concatenate((spans, *by_head), axis=1)
            csv.writer(file).writerow(["start", "end", *list_columns(self.heads)])
            csv.writer(file).writerows([f"{value:.7g}" for value in row] for row in rows)
        panels = [(head.name, head.names, probs) for head, probs in zip(self.heads, by_head)]
        title = format_line(Path(video).name, TITLE_LENGTH)
        predict_plots.draw_timeline(plot, title=title, spans=np.array(spans), panels=panels)
        best = []
        for (start, end), *probs in zip(spans, *by_head):
            ranking = rank_all(self.heads, probs, 1)
            (entry,) = ranking.get("joint") or ranking["top"]
            best.append({"start": round(start, 3), "end": round(end, 3), **entry})
        return {"csv": str(table), "timeline": str(plot), "windows": best}


def list_videos(names: Sequence[str], suffixes: Sequence[str]) -> list[str]:
    """The paths of videos; a folder stands for all files below it that end in `suffixes`, sorted.

    A folder without such a file stays, as a folder of frames. Hidden files and folders are left
    out. Raises ValueError for what does not exist, and for an address.
    """
    videos = []
    for name in names:
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", name):
            raise ValueError(f"{name}: addresses are not read; save the video as a file first")
        if not os.path.exists(name):
            raise ValueError(f"{name} does not exist")
        inside = []
        for folder, inner, files in os.walk(name):
            inner[:] = [part for part in inner if not part.startswith(".")]
            inside += [
                os.path.join(folder, file)
                for file in files
                if file.lower().endswith(tuple(suffixes)) and not file.startswith(".")
            ]
        videos += sorted(inside) or [name]
    return videos


def write_predictions(
    videos: list[str],
    folder: Path,
    run_jobs: Callable[[list[Job]], Iterator[tuple[Job, dict]]],
    settings: str = "",
    part: Optional[Part] = None,
) -> dict:
    """Prints and writes the records of the videos; returns the result of the command.

    `run_jobs` yields (job, record) in any order. With `part`, its records go to a file of their
    own. The records that such files hold for these `settings` and videos are not computed again,
    and the files are removed when all are written. Raises ValueError if no video can be read; a
    broken one is a line on stderr.
    """
    start = time.monotonic()
    records = []
    errors = []
    with report_write_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        jobs = list(zip(videos, make_file_names(videos)))
        keys = {job: job_key(settings, job) for job in (part.select(jobs) if part else jobs)}
        earlier = read_part_files(folder)
        ready = {job: earlier[key] for job, key in keys.items() if key in earlier}
        missing = [job for job in keys if job not in ready]
        hidden = sys.stdout.isatty()  # there, a table for every video shows the progress
        results = run_jobs(missing)
        progress = Progress(len(missing), name="predicting", unit="videos", hidden=hidden)
        file = part and folder / PART_FILE.format(part.file_name)
        with (
            open(file, "a") if file else contextlib.nullcontext() as notes,
            contextlib.closing(progress),
        ):
            if notes:
                notes.write("\n")  # ends a line that a kill has cut
            for job in keys:
                while job not in ready:
                    other, ready[other] = next(results)
                    progress.update()
                    if notes:
                        notes.write(f"{json.dumps([keys[other], ready[other]])}\n")
                        notes.flush()
                records.append(ready.pop(job))
                if "error" not in records[-1]:
                    print(format_table(records[-1]), flush=True)
                    continue
                errors.append(records[-1]["error"])
                if len(videos) > 1:
                    print(f"error: {errors[-1]}", file=sys.stderr)
        end = {"failed": len(errors), "out": str(folder)}
        end["seconds"] = round(time.monotonic() - start, 2)
        if part:
            return {"part": str(part), "videos": len(records), **end}
        if len(errors) == len(videos):
            raise ValueError(errors[0] if len(errors) == 1 else "none of the videos was read")
        lines = "".join(f"{json.dumps(record)}\n" for record in records)
        write_text(folder / f"{PREDICTIONS}.jsonl", lines)
        write_table(folder / f"{PREDICTIONS}.csv", records)
        for file in folder.glob(PART_FILE.format("*")):
            file.unlink()
    return {"predictions": records, **end}


def write_table(path: Path, records: Sequence[dict]) -> None:
    """A line for each video: its best classes in the order of their probabilities, or its error.

    With several data sets, the classes are those of `joint`, with the set before the name.
    """
    rankings = [record.get("joint") or record.get("top", []) for record in records]
    heading = ["video"]
    for rank in range(1, max(map(len, rankings)) + 1):
        heading += [f"class_{rank}", f"label_{rank}", f"probability_{rank}"]
    with open_replacement(path, newline="") as file:
        writer = csv.DictWriter(file, [*heading, "error"])
        writer.writeheader()
        for record, ranking in zip(records, rankings):
            row = {"video": escape_control(record["video"]), "error": record.get("error", "")}
            for rank, entry in enumerate(ranking, 1):
                name = "/".join(filter(None, (entry.get("set"), entry["name"])))
                row[f"class_{rank}"] = escape_control(name)
                row[f"label_{rank}"] = entry["label"]
                row[f"probability_{rank}"] = entry["probability"]
            writer.writerow(row)


def job_key(settings: str, job: Job) -> str:
    """The settings, the job, and size and time of the video: a record is valid for one key."""
    stat = os.stat(job[0])
    return json.dumps([settings, *job, stat.st_size, stat.st_mtime_ns])


def read_part_files(folder: Path) -> dict[str, dict]:
    """{key: record}; skips a line that a kill has cut."""
    records = {}
    for path in sorted(folder.glob(PART_FILE.format("*"))):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                key, records[key] = json.loads(line)
    return records


def make_file_names(videos: list[str]) -> list[str]:
    """A file name for each video: its own, with a number if it is taken.

    Characters that are no text are escaped; names that are too long for a file are cut.
    """
    names: dict[str, None] = {}  # a set that keeps the order
    for video in videos:
        escaped = escape_control(Path(video).stem).encode()
        count = 1
        name = stem = escaped[:NAME_BYTES].decode(errors="ignore")
        while name in names or name == PREDICTIONS:
            count += 1
            name = f"{stem}_{count}"
        names[name] = None
    return list(names)


def preview_times(head: Head, window: Window, shape: tuple) -> Optional[np.ndarray]:
    """Seconds of the previewed frames, of `shape` (clips, T); None without a frame rate.

    If a picture stands for several frames, its time is that of the first one.
    """
    if not window.fps:
        return None
    return (window.start + head.frame_indices(window).reshape(*shape, -1)[..., 0]) / window.fps


def describe_views(head: Head) -> str:
    crops = f"the middle one of {head.crops} crops" if head.crops > 1 else "1 crop"
    clips = f"{head.clips} clips, a line each" if head.clips > 1 else "1 clip"
    views = "1 view" if head.clips * head.crops == 1 else f"{head.clips * head.crops} views"
    return f"{head.name + ': ' if head.name else ''}{views}: {clips}; {crops}"


def format_table(record: dict) -> str:
    """Rank, class, label and probability; for several data sets, all together, then each."""
    lines = [escape_control(f"{record['video']}  ({record['views']} views)")]
    blocks = (
        {"": record["top"]} if "top" in record else {"joint": record["joint"], **record["sets"]}
    )
    for title, entries in blocks.items():
        lines += [f" {title}"] if title else []
        for rank, entry in enumerate(entries, 1):
            prefix = f"{entry['set']}: " if title == "joint" else ""
            name = format_line(f"{prefix}{entry['name'] or '-'}", MAX_CLASS_NAME)
            percent = 100 * entry["probability"]
            lines.append(f"{rank:4d}  {name:40s} {entry['label']:5d} {percent:7.2f} %")
    return "\n".join(lines)
