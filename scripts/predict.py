"""Says what is to be seen in videos (for resnet50: images), and draws what the network saw.

    python scripts/predict.py --config_path Y --checkpoint_path C VIDEO [VIDEO ...]
        [--labels FILE] [--top 5] [--out DIR] [--window SECONDS] [--step SECONDS]
        [--stream] [--fps N] [--section.key=value ...]

Scores are those of the room's `eval.py` for the same views. A video longer than 30 seconds is cut
into windows of 10, which --window changes for any video (0: one clip, however long); --step is from
one window's start to the next, by default the window. --labels has a line for each class.

Prints a table for every video. DIR, by default `predictions` beside the checkpoint, gets
`predictions.jsonl`, a line a video, and `NAME.png`; of windows also `NAME.csv`, all classes over
time, and `NAME_timeline.png`. The last line of stdout is one JSON object: predictions, failed, out,
seconds. Exit status 1 where a video could not be read and others could, 2 where none could.

--stream (tsm, built with model.online=true) takes one VIDEO frame by frame, or the camera of that
number: a JSON line a frame, `NAME_stream.csv` and `NAME_stream.png`; ctrl-C ends it. --fps says how
many frames a second it takes. Docs: docs/predict.md.
"""

import csv
import importlib
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from utils import command, inference, predicting, run_log, runtime
from utils.checkpoint import explained, write_text
from utils.config import ROOT
from utils.metrics import print_result
from utils.pictures import Row, draw_classes, draw_sheet
from utils.predicting import Head, Seen
from utils.video import VideoError

SECONDS = ("window", "step", "fps")


def main(
    room: str,
    cfg: Any,
    checkpoint_path: str,
    videos: list[str],
    stream: bool,
    labels: str = "",
    top: str = "5",
    out: str = "",
    **seconds: str,
) -> int:
    if not videos:
        raise ValueError("name at least one video: scripts/predict.py ... VIDEO [VIDEO ...]")
    top = command.whole_number("top", top)
    given = {name: command.number(name, text) for name, text in seconds.items()}
    streams = stream or "fps" in given
    if streams and (not stream or len(videos) > 1 or set(given) & {"window", "step"}):
        raise ValueError("--stream takes one VIDEO, --fps goes with it, --window and --step do not")
    for video in videos:
        if not (stream and video.isdecimal()) and not Path(video).exists():
            raise ValueError(f"{video} does not exist")
    heads = importlib.import_module(f"{room}.prediction").heads(cfg)
    predicting.name_classes(heads, labels)
    folder = Path(out) if out else Path(checkpoint_path).parent / "predictions"
    rt = runtime.start(cfg.run)
    run_log.start_log(rt)
    if stream:
        if not (ROOT / room / "streaming.py").is_file():
            raise ValueError(f"--stream: {room} has no form that takes frame after frame; tsm has")
        streaming = importlib.import_module(f"{room}.streaming")
        make(folder)
        rest = (heads[0], top, given.get("fps", 0.0), folder)
        print_result(streaming.run(cfg, checkpoint_path, videos[0], *rest), rt)
        return 0
    predictor = Predictor(room, cfg, checkpoint_path, heads, top, folder, given)
    result = predictor.run(videos)
    print_result(result, rt)
    return 1 if result["failed"] else 0


class Predictor:
    """The network of one command, and where its findings go."""

    def __init__(self, room, cfg, checkpoint_path, heads: list[Head], top, folder, given):
        self.open = importlib.import_module(f"{room}.prediction").open_source
        self.cfg, self.heads, self.top, self.folder = cfg, heads, top, folder
        self.window, self.step = given.get("window"), given.get("step")
        build = importlib.import_module(f"{room}.model").build_network
        classifier = importlib.import_module(f"{room}.lr_generator").HEAD
        self.net = inference.load(build, cfg, checkpoint_path, classifier)
        make(folder)

    def run(self, videos: list[str]) -> dict:
        """Raises ValueError where no video at all can be read; a broken one is a line on stderr."""
        began, records, failed = time.monotonic(), [], []
        names = file_names(videos)
        with explained(self.folder, "--out"):
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
        with self.open(video, self.cfg) as source:
            parts = predicting.parts_of(source, self.window, self.step)
            best, shares = None, []
            for seen in predicting.look(self.net, source, parts, self.heads):
                shares.append(seen.shares)
                if best is None or surest(seen) > surest(best):
                    best = seen
            fps = source.fps
            record = {"video": video, "frames": len(source), "fps": round(fps, 3)}
        record["views"] = ", ".join(f"{head.clips}x{head.crops}" for head in self.heads)
        shares = [np.stack(own) for own in zip(*shares)]  # of each head (parts, classes)
        means = [own.mean(axis=0) for own in shares]
        record.update(predicting.ranking(self.heads, means, self.top))
        record["picture"] = self.draw(video, name, best, len(parts), fps)
        if len(parts) > 1:
            record.update(self.over_time(video, name, parts, shares))
        return record

    def draw(self, video: str, name: str, seen: Seen, windows: int, fps: float) -> str:
        title = video
        if windows > 1:
            start, end = span(seen.part)
            title += f", {start:.1f} to {end:.1f} s, the surest of {windows} windows"
        rows = [
            Row(caption(head), head.pictures(views), predicting.entries(head, share, self.top))
            for head, views, share in zip(self.heads, seen.views, seen.shares)
        ]
        path = self.folder / f"{name}.png"
        draw_sheet(path, title, rows)
        return str(path)

    def over_time(self, video: str, name: str, parts: list, shares: list[np.ndarray]) -> dict:
        """The windows' best classes; all classes go into a table, the first into a picture."""
        spans = [span(part) for part in parts]
        rows = np.concatenate((spans, *shares), axis=1)
        text = io.StringIO()
        csv.writer(text).writerow(["start", "end", *predicting.columns(self.heads)])
        csv.writer(text).writerows([f"{value:.7g}" for value in row] for row in rows)
        write_text(self.folder / f"{name}.csv", text.getvalue())
        panels = [(caption(h), h.names, own) for h, own in zip(self.heads, shares)]
        path = self.folder / f"{name}_timeline.png"
        draw_classes(path, video, np.mean(spans, axis=1), panels)
        windows = []
        for (start, end), *each in zip(spans, *shares):
            found = predicting.ranking(self.heads, each, 1)
            best = (found.get("joint") or found["top"])[0]
            windows.append({"start": round(start, 3), "end": round(end, 3), **best})
        files = {"csv": str(self.folder / f"{name}.csv"), "timeline": str(path)}
        return {**files, "windows": windows}


def make(folder: Path) -> None:
    with explained(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)


def file_names(videos: list[str]) -> list[str]:
    """A name for each video's files: its own, with a number where two have the same."""
    names: list[str] = []
    for video in videos:
        stem, count = Path(video).stem, 1
        name = stem
        while name in names:
            count += 1
            name = f"{stem}_{count}"
        names.append(name)
    return names


def surest(seen: Seen) -> float:
    return max(float(share.max()) for share in seen.shares)


def span(part) -> tuple[float, float]:
    """Start and end in seconds."""
    fps = part.fps or predicting.FPS
    return part.first / fps, (part.first + len(part)) / fps


def caption(head: Head) -> str:
    crops = f"the middle one of {head.crops} crops" if head.crops > 1 else "1 crop"
    clips = f"{head.clips} clips, a line each" if head.clips > 1 else "1 clip"
    return (
        f"{head.name + ': ' if head.name else ''}{head.clips * head.crops} views: {clips}; {crops}"
    )


def table(record: dict) -> str:
    """Rank, class, label and probability; of several data sets all together, then each."""
    lines = [f"{record['video']}  ({record['views']} views)"]
    blocks = (
        {"": record["top"]} if "top" in record else {"joint": record["joint"], **record["sets"]}
    )
    for title, found in blocks.items():
        lines += [f" {title}"] if title else []
        for rank, entry in enumerate(found, 1):
            where = f"{entry['set']}: " if title == "joint" else ""
            name = f"{where}{entry['name'] or '-'}"
            lines.append(
                f"{rank:4d}  {name:40s} {entry['label']:5d} {100 * entry['probability']:7.2f} %"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    command.run_room(
        main,
        __doc__,
        ["checkpoint_path"],
        flags=["stream"],
        optional=["labels", "top", "out", *SECONDS],
        free="videos",
    )
