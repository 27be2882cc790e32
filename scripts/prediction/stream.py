"""Labels a stream for scripts/predict.py: a JSON line for each result, a table and a plot."""

import csv
import json
import threading
from collections import deque
from pathlib import Path

import numpy as np

from scripts.prediction.plots import draw_timeline
from scripts.prediction.records import rank_all
from utils import signals
from utils.api import Model
from utils.evaluate.predict import TITLE_LENGTH, list_columns
from utils.evaluate.stream import Stream, StreamResult
from utils.files import open_replacement, report_write_errors
from utils.log import log
from utils.messages import RunInterruptedError, format_line
from utils.video.live import hide_password
from utils.video.reader import VideoError

MAX_PLOTTED = 10_000  # results; the picture shows the last ones


class StreamReport:
    """Prints and writes the results of `stream`; its lists have the `top` classes."""

    def __init__(self, model: Model, stream: Stream, video: str, top: int, threshold: float):
        self.heads = model.heads
        self.stream = stream
        self.video = hide_password(video)
        self.top = top
        self.threshold = threshold
        self.count = 0
        self.totals = [np.zeros(head.classes) for head in self.heads]  # of the probabilities
        self.last: deque[StreamResult] = deque(maxlen=MAX_PLOTTED)
        self.interrupted = threading.Event()
        self.error = ""

    def write(self, folder: Path) -> dict:
        """Labels the stream until it ends, or until ctrl-C. Returns the summary.

        Writes `NAME_stream.csv` and `NAME_stream.png`. If the source breaks, the results before are
        written, and the summary has an `error`. Raises ValueError if there is no result, or
        RunInterruptedError after ctrl-C.
        """
        name = f"{self.stream.source.name}_stream"
        table = folder / f"{name}.csv"
        picture = folder / f"{name}.png"
        with self.stream, report_write_errors(folder, "--out"):
            folder.mkdir(parents=True, exist_ok=True)
            with signals.handle_signals(self.stop):
                self.write_table(table)
        self.draw(picture)
        return self.summarize(csv=str(table), picture=str(picture))

    def stop(self, number: int) -> None:
        self.interrupted.set()
        self.stream.stop()

    def write_table(self, path: Path) -> None:
        columns = self.stream.scorer.columns
        with open_replacement(path, newline="") as file:
            rows = csv.writer(file)
            rows.writerow([*columns, *list_columns(self.heads)])
            try:
                for result in self.stream:
                    self.add(result)
                    times = (result.start, result.end)[: len(columns)]
                    entry = {name: round(time, 3) for name, time in zip(columns, times)}
                    entry.update(self.find_best(result.probabilities))
                    print(json.dumps(entry), flush=True)
                    values = np.concatenate(result.probabilities)
                    rows.writerow(
                        [*(f"{time:.3f}" for time in times), *(f"{value:.7g}" for value in values)]
                    )
            except VideoError as error:
                self.error = str(error)
            if not self.count:
                raise self.explain_nothing()

    def add(self, result: StreamResult) -> None:
        self.count += 1
        self.totals = [total + p for total, p in zip(self.totals, result.probabilities)]
        self.last.append(result)

    def find_best(self, probabilities: list[np.ndarray]) -> dict:
        ranking = rank_all(self.heads, probabilities=probabilities, top=1, threshold=self.threshold)
        (entry,) = ranking.get("joint") or ranking["top"]
        return entry

    def explain_nothing(self) -> Exception:
        if self.interrupted.is_set():
            return RunInterruptedError(f"interrupted before the first result of {self.video}")
        frames = self.stream.frames
        reason = f"{frames} frames are less than a window" if frames else "no frame came"
        return ValueError(self.error or f"{self.video}: {reason}")

    def draw(self, path: Path) -> None:
        times = np.array([result[:2] for result in self.last])
        by_head = zip(*(result.probabilities for result in self.last))
        panels = [(h.name, h.names, np.stack(values)) for h, values in zip(self.heads, by_head)]
        way = "frame by frame" if len(self.stream.scorer.columns) == 1 else "in windows"
        title = f"{format_line(self.video, TITLE_LENGTH)}, {way}"
        draw_timeline(path, title=title, spans=times, panels=panels)

    def summarize(self, **files: str) -> dict:
        stream = self.stream
        means = [total / self.count for total in self.totals]
        if self.error:
            log.error("%s", self.error)
        if stream.video:
            files["saved"] = str(stream.video.path)
        return {
            "video": self.video,
            "frames": stream.frames,
            "fps": round(stream.scorer.fps, 3),
            "results": self.count,
            **rank_all(self.heads, probabilities=means, top=self.top, threshold=self.threshold),
            "dropped": stream.dropped,
            "skipped": stream.scorer.skipped,
            "reopened": stream.source.reopened,
            "interrupted": self.interrupted.is_set(),
            **({"error": self.error} if self.error else {}),
            **files,
        }
