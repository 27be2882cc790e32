#!/usr/bin/env python3
"""Labels a camera, a stream or a video while it runs.

    python scripts/stream.py --checkpoint_path C SOURCE [--config_path Y]
        [--labels FILE] [--top 5] [--threshold P] [--out DIR] [--window SECONDS] [--step SECONDS]
        [--fps N] [--retry SECONDS] [--save FILE.mp4] [--overwrite] [--section.key=value ...]

SOURCE is a camera (its number), an address such as rtsp:// or http://, or a video. Prints a JSON
line for each window, or, for resnet50 and for tsm built with model.online=true, for each frame,
--fps of them in a second. Windows have --window seconds (10), and begin every --step seconds, by
default the window. --labels, --top, --threshold and --out as in scripts/predict.py. --save
writes the frames with the present class drawn in.

Writes `NAME_stream.csv` and `NAME_stream.png`; ctrl-C ends it. The last line of stdout is one JSON
object: the mean of all results, their number, and those of dropped frames and interruptions. A
source that breaks off is opened again for up to --retry seconds (30); then the exit status is 1.
Docs: docs/streams.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import csv
import json
import threading
from collections import deque
from typing import Optional

import numpy as np

from scripts.prediction.plots import draw_timeline
from scripts.prediction.records import OWN, check_save, list_videos
from utils import cli, log, signals
from utils.files import check_folder, check_inputs, open_replacement, report_write_errors
from utils.inference.model import Model, build_model
from utils.inference.prediction import TITLE_LENGTH, Prediction
from utils.inference.stream import Stream, StreamResult
from utils.messages import RunInterruptedError, format_line, hide_secrets
from utils.networks import Network
from utils.runtime import Runtime
from utils.settings import NetworkConfig
from utils.video.live import RETRY, is_address
from utils.video.media_files import VIDEO_SUFFIXES
from utils.video.reader import VideoError

MAX_PLOTTED = 10_000  # results; the picture shows the last ones


def main(
    network: Network,
    cfg: NetworkConfig,
    source: list[str],
    *,
    checkpoint_path: str,
    fps: Optional[cli.PositiveFloat] = None,
    retry: cli.NonNegativeFloat = RETRY,
    window: Optional[cli.NonNegativeFloat] = None,
    step: Optional[cli.PositiveFloat] = None,
    threshold: cli.Probability = 0.0,
    save: Optional[Path] = None,
    overwrite: bool = False,
    labels: str = "",
    top: cli.PositiveInt = 5,
    out: Optional[Path] = None,
) -> int:
    if not (source[0].isdecimal() or is_address(source[0])):
        source = list_videos(source, VIDEO_SUFFIXES)
    if len(source) > 1:
        raise ValueError(f"SOURCE is one video, not {len(source)}")
    if save:
        check_save(save, [*source, checkpoint_path, labels], overwrite)
    log.start_log(Runtime())
    model = build_model(network, cfg=cfg, checkpoint=checkpoint_path, labels=labels)
    options = {"fps": fps, "threshold": threshold, "retry": retry, "overwrite": overwrite}
    stream = model.stream(source[0], window, step, save=save or "", **options)
    folder = out or Path(checkpoint_path).parent / "predictions"
    summary = label_stream(model, stream=stream, video=source[0], folder=folder, top=top)
    log.print_result(summary, Runtime())
    return 1 if "error" in summary else 0


def label_stream(model: Model, stream: Stream, video: str, folder: Path, top: int) -> dict:
    """Labels the stream until it ends, or until ctrl-C. Returns the summary, with `top` classes.

    Prints a line for each result; writes `NAME_stream.csv` and `NAME_stream.png`. If the source
    breaks, the results before are written, and the summary has an `error`. Raises ValueError if
    there is no result, or RunInterruptedError after ctrl-C.
    """
    shown = hide_secrets(video)
    columns = stream.scorer.columns
    table = folder / f"{stream.source.name}_stream.csv"
    picture = table.with_suffix(".png")
    totals = [np.zeros(head.classes) for head in model.heads]  # of the probabilities
    last: deque[StreamResult] = deque(maxlen=MAX_PLOTTED)
    count = 0
    error = ""
    interrupted = threading.Event()

    def stop(number: int) -> None:
        interrupted.set()
        stream.stop()

    with stream, report_write_errors(folder, "--out"), signals.handle_signals(stop):
        check_inputs([table, picture], [video])
        check_folder(folder, OWN)
        with open_replacement(table, newline="") as file:
            rows = csv.writer(file)
            names = [(f"{head.name}/" if head.name else "", head) for head in model.heads]
            classes = [f"{prefix}{name}" for prefix, head in names for name in head.name_classes()]
            rows.writerow([*columns, *classes])
            try:
                for result in stream:
                    count += 1
                    last.append(result)
                    totals = [total + p for total, p in zip(totals, result.probabilities)]
                    times = [round(time, 3) for time in result[: len(columns)]]
                    entry = {**dict(zip(columns, times)), **result.prediction.best}
                    print(json.dumps(entry), flush=True)
                    values = [f"{value:.7g}" for value in np.concatenate(result.probabilities)]
                    rows.writerow([*(f"{time:.3f}" for time in times), *values])
            except VideoError as end:
                error = str(end)
            if not count and interrupted.is_set():
                raise RunInterruptedError(f"interrupted before the first result of {shown}")
            if not count:
                raise ValueError(error or f"{shown}: {stream.frames} frames are less than a window")
    if error:
        log.log.error("%s", error)
    way = "in windows" if len(columns) == 2 else "frame by frame"
    by_head = zip(model.heads, zip(*(result.probabilities for result in last)))
    panels = [(head.name, head.names, np.stack(values)) for head, values in by_head]
    spans = np.array([result[:2] for result in last])
    draw_timeline(picture, f"{format_line(shown, TITLE_LENGTH)}, {way}", spans, panels)
    means = [total[None] / count for total in totals]
    prediction = Prediction(model.heads, spans[:1], means, stream.threshold)
    return {
        "video": shown,
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


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
