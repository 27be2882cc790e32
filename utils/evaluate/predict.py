"""Predicts videos one after the other: records, tables, files."""

import csv
import io
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Optional

import numpy as np
from mindspore import nn

from utils.evaluate import video_inference
from utils.evaluate.predict_plots import Row, draw_classes, draw_sheet
from utils.evaluate.video_inference import Head, Part, Seen
from utils.files import escape_control, explained, write_text
from utils.messages import to_line
from utils.plotting import shortened
from utils.video.reader import FrameSource, VideoError

LONGEST = 60  # letters of a file's name in a title
MAX_CLASS_NAME = 200  # characters of a class name in a table
NAME_BYTES = 255 - len("_timeline.png.tmp") - 5  # of 255 that a file's name may have; 5: a number


class Predictor:
    """The network of one command, and where its findings go."""

    def __init__(
        self,
        net: nn.Cell,
        heads: Sequence[Head],
        open_source: Callable[[str], FrameSource],
        folder: Path,
        top: int,
        window: Optional[float] = None,
        step: Optional[float] = None,
    ):
        """`top` classes are told; `window` and `step` are as in `predicting.parts_of`."""
        self.net, self.heads, self.open = net, heads, open_source
        self.folder, self.top, self.window, self.step = folder, top, window, step

    def run(self, videos: list[str]) -> dict:
        """Raises ValueError where no video at all can be read; a broken one is a line on stderr."""
        began, records, failed = time.monotonic(), [], []
        names = file_names(videos)
        with explained(self.folder, "--out"):
            self.folder.mkdir(parents=True, exist_ok=True)
            for video, name in zip(videos, names):
                try:
                    records.append(self.predict(video, name))
                    print(table(records[-1]), flush=True)
                except VideoError as error:
                    failed.append(str(error))
                    records.append({"video": video, "error": str(error)})
                    if len(videos) > 1:
                        print(f"error: {error}", file=sys.stderr)
            if len(failed) == len(videos):
                raise ValueError(failed[0] if len(failed) == 1 else "none of the videos was read")
            lines = "".join(f"{json.dumps(record)}\n" for record in records)
            write_text(self.folder / "predictions.jsonl", lines)
        result = {"predictions": records, "failed": len(failed), "out": str(self.folder)}
        return {**result, "seconds": round(time.monotonic() - began, 2)}

    def predict(self, video: str, name: str) -> dict:
        """One video's record; its pictures are written."""
        with self.open(video) as source:
            parts = video_inference.parts_of(source, self.window, self.step)
            best, fractions = None, []
            for seen in video_inference.look(self.net, source, parts, self.heads):
                fractions.append(seen.probabilities)
                if best is None or surest(seen) > surest(best):
                    best = seen
            fps = source.fps
            record = {"video": video, "frames": len(source), "fps": round(fps, 3)}
        record["views"] = ", ".join(f"{head.clips}x{head.crops}" for head in self.heads)
        fractions = [np.stack(own) for own in zip(*fractions)]  # of each head (parts, classes)
        means = [own.mean(axis=0) for own in fractions]
        record.update(video_inference.ranking(self.heads, means, self.top))
        record["picture"] = self.draw(video, name, best, len(parts), fps)
        if len(parts) > 1:
            record.update(self.over_time(video, name, parts, fractions))
        return record

    def draw(self, video: str, name: str, seen: Seen, windows: int, fps: float) -> str:
        title = shortened(Path(video).name, LONGEST)
        if windows > 1:
            start, end = span(seen.part)
            title += f", {start:.1f} to {end:.1f} s, the surest of {windows} windows"
        rows = [
            sheet_row(head, seen.part, views, video_inference.entries(head, fraction, self.top))
            for head, views, fraction in zip(self.heads, seen.views, seen.probabilities)
        ]
        path = self.folder / f"{name}.png"
        draw_sheet(path, title, rows)
        return str(path)

    def over_time(self, video: str, name: str, parts: list, fractions: list[np.ndarray]) -> dict:
        """The windows' best classes; all classes go into a table, the first into a picture."""
        spans = [span(part) for part in parts]
        rows = np.concatenate((spans, *fractions), axis=1)
        text = io.StringIO()
        csv.writer(text).writerow(["start", "end", *video_inference.columns(self.heads)])
        csv.writer(text).writerows([f"{value:.7g}" for value in row] for row in rows)
        write_text(self.folder / f"{name}.csv", text.getvalue())
        panels = [(h.name, h.names, own) for h, own in zip(self.heads, fractions)]
        path = self.folder / f"{name}_timeline.png"
        draw_classes(path, shortened(Path(video).name, LONGEST), np.array(spans), panels)
        windows = []
        for (start, end), *each in zip(spans, *fractions):
            result = video_inference.ranking(self.heads, each, 1)
            best = (result.get("joint") or result["top"])[0]
            windows.append({"start": round(start, 3), "end": round(end, 3), **best})
        files = {"csv": str(self.folder / f"{name}.csv"), "timeline": str(path)}
        return {**files, "windows": windows}


def file_names(videos: list[str]) -> list[str]:
    """A name for each video's files: its own, with a number where two have the same.

    What is no text is escaped, and what is too long for a file's name is cut.
    """
    names: list[str] = []
    for video in videos:
        whole, count = escape_control(Path(video).stem).encode(), 1
        name = stem = whole[:NAME_BYTES].decode(errors="ignore")
        while name in names:
            count += 1
            name = f"{stem}_{count}"
        names.append(name)
    return names


def surest(seen: Seen) -> float:
    return max(float(fraction.max()) for fraction in seen.probabilities)


def span(part: Part) -> tuple[float, float]:
    """Start and end in seconds."""
    fps = part.fps or video_inference.FPS
    return part.first / fps, (part.first + len(part)) / fps


def sheet_row(head: Head, part: Part, views: np.ndarray, entries: list[dict]) -> Row:
    pictures = head.pictures(views)
    times = None
    if part.fps:  # of a picture that stands for several frames, the first one's
        numbers = head.numbers(part).reshape(*pictures.shape[:2], -1)[..., 0]
        times = (part.first + numbers) / part.fps
    return Row(caption(head), pictures, entries, times)


def caption(head: Head) -> str:
    crops = f"the middle one of {head.crops} crops" if head.crops > 1 else "1 crop"
    clips = f"{head.clips} clips, a line each" if head.clips > 1 else "1 clip"
    views = "1 view" if head.clips * head.crops == 1 else f"{head.clips * head.crops} views"
    return f"{head.name + ': ' if head.name else ''}{views}: {clips}; {crops}"


def table(record: dict) -> str:
    """Rank, class, label and probability; of several data sets all together, then each."""
    lines = [escape_control(f"{record['video']}  ({record['views']} views)")]
    blocks = (
        {"": record["top"]} if "top" in record else {"joint": record["joint"], **record["sets"]}
    )
    for title, result in blocks.items():
        lines += [f" {title}"] if title else []
        for rank, entry in enumerate(result, 1):
            where = f"{entry['set']}: " if title == "joint" else ""
            name = to_line(f"{where}{entry['name'] or '-'}", MAX_CLASS_NAME)
            lines.append(
                f"{rank:4d}  {name:40s} {entry['label']:5d} {100 * entry['probability']:7.2f} %"
            )
    return "\n".join(lines)
