"""The record of a video: its best classes, with its pictures; and the tables of all records."""

import contextlib
import csv
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from scripts.executors.video_jobs import STARTED, Results
from scripts.prediction.plots import PreviewRow, draw_preview, format_class
from utils import cli
from utils.evaluate.windows import read_windows
from utils.files import check_target, open_replacement, write_text
from utils.inference.model import Model
from utils.inference.prediction import (
    PREDICTIONS,
    TITLE_LENGTH,
    Prediction,
    WindowResult,
    rank_classes,
)
from utils.log import Progress
from utils.messages import escape_control, format_line, hide_secrets, print_line
from utils.video.live import ADDRESS
from utils.video.media_files import IMAGE_SUFFIXES, describe_left_out, find_files, has_suffix
from utils.video.reader import DEFAULT_FPS, FrameReader, VideoError, find_time
from utils.video.windows import split_into_windows
from utils.video.writer import CaptionedVideo

MAX_CLASS_NAME = 200  # characters of a class name in a table
# Main files of predict.py and stream.py, which have one folder
OWN = {
    f"{PREDICTIONS}.jsonl": r'\{"video": |\Z',
    STARTED.format(PREDICTIONS): r"\Z",
    "*_stream.csv": "start,end,|time,",
}


@dataclass(frozen=True)
class PredictOptions:
    """What `Predictor` writes into `folder`; the others are options of the command.

    Records list the `top` classes of at least `threshold`; `window` and `step` are the seconds of
    `split_into_windows`. `save` is an mp4 file for one video with its classes drawn in. `cam` draws
    heat maps too, of the most probable class.
    """

    folder: Path
    _: KW_ONLY
    top: cli.PositiveInt = 5
    window: Optional[cli.NonNegativeFloat] = None
    step: Optional[cli.PositiveFloat] = None
    threshold: cli.Probability = 0.0
    save: Optional[Path] = None
    cam: bool = False


class Predictor:
    """Predicts videos with one model. A job is a video, and the name of its files."""

    def __init__(self, model: Model, options: PredictOptions):
        self.model = model
        self.heads = model.heads
        self.options = options
        self.cam = None
        if options.cam:
            from utils.inference import cam

            self.cam = cam.GradCam(model.load_cell(), model.heads)

    def run_jobs(self, jobs: Iterable[tuple[str, str]]) -> Results:
        """The record of each job; a broken video's has an `error`."""
        for video, name in jobs:
            try:
                yield (video, name), self.predict(video, name)
            except VideoError as error:
                yield (video, name), {"video": video, "error": str(error)}

    def predict(self, video: str, name: str) -> dict:
        """The record of one video; writes its pictures."""
        options = self.options
        with self.model.open(video) as source:
            windows = split_into_windows(source, options.window, options.step)
            parts = read_windows(source, windows, self.heads)
            count = len(windows)
            parts = Progress(parts, name, total=count, unit="windows", hidden=count == 1)
            prediction, best = self.model.score_windows(parts, options.top, options.threshold)
            record = {"video": video, "frames": len(source), "fps": round(source.fps, 3)}
            if options.save:
                save_video(options.save, source, prediction)
                record["saved"] = str(options.save)
        record["views"] = ", ".join(f"{head.clips}x{head.crops}" for head in self.heads)
        record.update(prediction.describe(options.top))
        title = format_line(Path(video).name, TITLE_LENGTH)
        if count > 1:
            start, end = best.window.span
            title = f"{title}, {start:.1f} to {end:.1f} s, the most confident of {count} windows"
        picture = options.folder / f"{name}.png"
        draw_preview(picture, title, self.list_rows(best))
        record["picture"] = str(picture)
        if self.cam is not None:
            record["cam"] = self.draw_heat_maps(options.folder / f"{name}_cam.png", title, best)
        if count > 1:
            record["windows"] = [
                {"start": start, "end": end, **prediction.select(number).best}
                for number, (start, end) in enumerate(prediction.windows.round(3).tolist())
            ]
        return record

    def list_rows(self, result: WindowResult) -> list[PreviewRow]:
        """The frames that the network read and the best classes, for each head."""
        rows = []
        for head, views, values in zip(self.heads, result.views, result.probabilities):
            prefix = f"{head.name}: " if head.name else ""
            shown = ", the middle crop" if head.crops > 1 else ""
            caption = f"{prefix}{head.clips} clips, {head.crops} crops{shown}"
            frames = head.preview_frames(views)
            times = None
            if result.window.fps:  # of several frames in one picture, the first one's
                indices = head.frame_indices(result.window).reshape(*frames.shape[:2], -1)
                times = result.window.find_time(indices[..., 0])
            entries = rank_classes(head, values, self.options.top, self.options.threshold)
            rows.append(PreviewRow(caption, frames, entries, times))
        return rows

    def draw_heat_maps(self, path: Path, title: str, result: WindowResult) -> list[str]:
        """Draws the heat maps of all heads as a picture, and as a video each; returns the files."""
        from utils.inference.cam import find_rate

        rows = self.list_rows(result)
        files = [path]
        for k, head in enumerate(self.heads):
            frames, label = self.cam.overlay(result.views[k], k, result.probabilities[k])
            name = format_class(head.name_classes()[label], label)
            caption = f"{rows[k].caption}; yellow: what speaks for {name}"
            rows[k] = rows[k]._replace(frames=frames, caption=caption)
            count = frames.shape[1]
            if count > 1:
                suffix = f"_{head.name}.mp4" if head.name else ".mp4"
                files.append(path.with_name(f"{path.stem}{suffix}"))
                rate = find_rate(head, result.window, count)
                with contextlib.closing(CaptionedVideo(files[-1], rate)) as video:
                    frames = frames.reshape(-1, *frames.shape[2:])
                    for number, pixels in enumerate(frames):
                        video.write(number, pixels)
        draw_preview(path, title, rows)
        return [str(file) for file in files]


def save_video(path: Path, source: FrameReader, prediction: Prediction) -> None:
    """All frames, with the best class of the window whose middle is nearest drawn in."""
    middles = prediction.windows.mean(axis=1)
    captions = [prediction.select(number).caption for number in range(len(middles))]
    fps = source.fps or DEFAULT_FPS
    with contextlib.closing(CaptionedVideo(path, fps)) as video:
        for number, pixels in enumerate(source.in_order()):
            seconds = float(find_time(source, number))
            nearest = np.abs(middles - seconds).argmin()
            video.write(seconds * fps, pixels, captions[nearest])


def check_save(save: Path, inputs: Sequence[str], overwrite: bool) -> None:
    """Raises ValueError for a --save that is no .mp4, or that `check_target` refuses."""
    if save.suffix != ".mp4":
        raise ValueError(f"--save: {save} must end in .mp4")
    check_target(save, inputs, "--save", overwrite)


def list_videos(names: Sequence[str], suffixes: Sequence[str]) -> list[str]:
    """The paths of videos; a folder stands for all files below it that end in `suffixes`, sorted.

    A folder without such a file stays, as a folder of frames. Hidden and system files and folders
    are left out, which a line says. Raises ValueError for what does not exist, a folder without any
    of them, and an address.
    """
    videos = []
    for name in names:
        if ADDRESS.match(name):
            raise ValueError(f"{hide_secrets(name)}: an address needs scripts/stream.py")
        if not os.path.exists(name):
            raise ValueError(f"{name} does not exist")
        scan = find_files(name, suffixes) if os.path.isdir(name) else None
        if scan and scan.files:
            videos += [os.path.join(name, file) for file in scan.files]
            kinds = "images" if suffixes == IMAGE_SUFFIXES else "videos"
            if left_out := describe_left_out(scan, kinds):
                print_line(f"{name}: {left_out}")
        elif scan and not any(has_suffix(file, IMAGE_SUFFIXES) for file in scan.others):
            raise ValueError(f"{name}: no file in this folder ends in {', '.join(suffixes)}")
        else:
            videos.append(name)
    return videos


def write_tables(folder: Path, records: Sequence[dict]) -> None:
    """Writes `predictions.jsonl`, and `predictions.csv` with a line for each video.

    It has the best classes in the order of their probabilities, or the error. With several data
    sets, the classes are those of `joint`, with the set before the name.
    """
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    write_text(folder / f"{PREDICTIONS}.jsonl", lines)
    rankings = [record.get("joint") or record.get("top", []) for record in records]
    ranks = range(1, max(map(len, rankings)) + 1)
    fields = [f"{field}_{rank}" for rank in ranks for field in ("class", "label", "probability")]
    with open_replacement(folder / f"{PREDICTIONS}.csv", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["video", *fields, "error"])
        for record, ranking in zip(records, rankings):
            values = []
            for entry in ranking:
                name = "/".join(filter(None, (entry.get("set"), entry["name"])))
                values += [escape_control(name), entry["label"], entry["probability"]]
            values += [""] * (len(fields) - len(values))
            writer.writerow([escape_control(record["video"]), *values, record.get("error", "")])


def format_table(record: dict) -> str:
    """Rank, class, label and probability; of several data sets together."""
    lines = [escape_control(f"{record['video']}  ({record['views']} views)")]
    for rank, entry in enumerate(record.get("joint") or record["top"], 1):
        prefix = f"{entry['set']}: " if "joint" in record else ""
        name = format_line(f"{prefix}{entry['name'] or '-'}", MAX_CLASS_NAME)
        percent = 100 * entry["probability"]
        lines.append(f"{rank:4d}  {name:40s} {entry['label']:5d} {percent:7.2f} %")
    return "\n".join(lines)
