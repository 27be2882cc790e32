"""Labels a stream for scripts/stream.py: a JSON line for each result, a table and a plot."""

import csv
import json
import threading
from collections import deque
from pathlib import Path

import numpy as np

from scripts.prediction.plots import draw_timeline
from utils import signals
from utils.files import check_outputs, open_replacement, report_write_errors
from utils.log import log
from utils.messages import RunInterruptedError, format_line, hide_secrets
from utils.predict.model import Model
from utils.predict.prediction import TITLE_LENGTH, Prediction, list_columns
from utils.predict.stream import Stream, StreamResult
from utils.video.reader import VideoError

MAX_PLOTTED = 10_000  # results; the picture shows the last ones


def label_stream(model: Model, stream: Stream, video: str, folder: Path, top: int) -> dict:
    """Labels the stream until it ends, or until ctrl-C. Returns the summary, with `top` classes.

    Prints a line for each result; writes `NAME_stream.csv` and `NAME_stream.png`. If the source
    breaks, the results before are written, and the summary has an `error`. Raises ValueError if
    there is no result, or RunInterruptedError after ctrl-C.
    """
    source = video
    video = hide_secrets(video)
    columns = stream.scorer.columns
    table = folder / f"{stream.source.name}_stream.csv"
    totals = [np.zeros(head.classes) for head in model.heads]  # of the probabilities
    last: deque[StreamResult] = deque(maxlen=MAX_PLOTTED)
    count = 0
    error = ""
    interrupted = threading.Event()

    def stop(number: int) -> None:
        interrupted.set()
        stream.stop()

    picture = table.with_suffix(".png")
    with stream, report_write_errors(folder, "--out"):
        check_outputs([table, picture], inputs=[source])
        written = open_replacement(table, newline="", option="--out")
        with signals.handle_signals(stop), written as file:
            rows = csv.writer(file)
            rows.writerow([*columns, *list_columns(model.heads)])
            try:
                for result in stream:
                    count += 1
                    last.append(result)
                    totals = [total + p for total, p in zip(totals, result.probabilities)]
                    times = (result.start, result.end)[: len(columns)]
                    entry = {name: round(time, 3) for name, time in zip(columns, times)}
                    entry.update(result.prediction.best)
                    print(json.dumps(entry), flush=True)
                    values = [f"{value:.7g}" for value in np.concatenate(result.probabilities)]
                    rows.writerow([*(f"{time:.3f}" for time in times), *values])
            except VideoError as end:
                error = str(end)
            if not count and interrupted.is_set():
                raise RunInterruptedError(f"interrupted before the first result of {video}")
            if not count:
                reason = "no frame came"
                if stream.frames:
                    reason = f"{stream.frames} frames are less than a window"
                raise ValueError(error or f"{video}: {reason}")
    if error:
        log.error("%s", error)
    way = "in windows" if len(columns) == 2 else "frame by frame"
    title = f"{format_line(video, TITLE_LENGTH)}, {way}"
    by_head = zip(model.heads, zip(*(result.probabilities for result in last)))
    panels = [(head.name, head.names, np.stack(values)) for head, values in by_head]
    spans = np.array([result[:2] for result in last])
    draw_timeline(picture, title=title, spans=spans, panels=panels)
    means = [total[None] / count for total in totals]
    prediction = Prediction(model.heads, spans[:1], means, stream.threshold)
    return {
        "video": video,
        "frames": stream.frames,
        "fps": round(stream.scorer.fps, 3),
        "results": count,
        **prediction.describe(top),
        "dropped": stream.dropped,
        "skipped": stream.scorer.skipped,
        "reopened": stream.source.reopened,
        "interrupted": interrupted.is_set(),
        **({"error": error} if error else {}),
        "csv": str(table),
        "picture": str(picture),
        **({"saved": str(stream.video.path)} if stream.video else {}),
    }
