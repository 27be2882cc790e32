"""The demo page of scripts/demo.py: the results of one or several models for a video, by Gradio.

A model has a column: its best classes, a plot of classes over time for a video in windows, and heat
maps. The page waits for one prediction at a time, because a model is for one thread.
"""

import base64
import html
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

import cv2
import gradio as gr
import numpy as np
import pandas as pd

from scripts.prediction.cam import GradCam, find_rate, write_clips
from scripts.prediction.plots import format_class, resize_to_fit
from utils.evaluate.label_space import WindowResult, list_columns
from utils.messages import format_line
from utils.predict.model import Model
from utils.video.reader import DEFAULT_FPS

TOP = 5
TIMELINE_CLASSES = 3
KEEP = 600  # seconds until an upload is deleted
COLUMN = 320  # pixels, the smallest width; a telephone shows one column
# Fonts of the visitor's system: Gradio's own are loaded from another server.
FONTS = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
TITLE = "MindSpore video zoo"
# A video of a larger size is more than the networks see, and a slow machine cannot record it.
CAMERA = {"video": {"width": {"ideal": 640}, "height": {"ideal": 480}}}


class Panel:
    """The column of one model, with heat maps if there is a `cam`.

    Windows of `window` seconds are those of `Model.predict`. A longer video than `max_seconds` is
    refused.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        max_seconds: float,
        window: Optional[float] = None,
        cam: Optional[GradCam] = None,
    ):
        self.name = name
        self.model = model
        self.max_seconds = max_seconds
        self.window = window
        self.cam = cam
        self.components: list[gr.Component] = []

    @property
    def reads_videos(self) -> bool:
        return bool(self.model.network.list_annotation_files(self.model.cfg))

    def build(self) -> None:
        """Adds the components of this model to the page."""
        heads = self.model.heads
        gr.Markdown(f"### {self.name}")
        status = gr.Markdown()
        bars = [gr.Label(label=head.name or "classes", num_top_classes=TOP) for head in heads]
        timeline = gr.LinePlot(
            x="seconds",
            y="probability",
            color="class",
            y_lim=[0, 1],
            label="classes over time",
            tooltip="all",
            visible=False,
        )
        maps = [gr.HTML(visible=False) for _ in heads if self.cam]
        self.components = [status, *bars, timeline, *maps]

    def show(self, path: Optional[str], progress: gr.Progress = gr.Progress()) -> list:  # noqa: B008
        """The new values of the components, for an upload; of an empty page without one."""
        if not path:
            return [
                gr.update(value=None, visible=component.visible) for component in self.components
            ]
        start = time.monotonic()
        try:
            self.check_length(path)
            spans, probabilities, best = self.score(path, progress)
        except ValueError as error:
            line = format_line(str(error).replace(path, Path(path).name))
            raise gr.Error(line, print_exception=False) from None
        ranking = self.model.rank(probabilities, TOP)
        rankings = list(ranking.values()) if isinstance(ranking, dict) else [ranking]
        table = self.tabulate(spans, probabilities)
        count = f"{len(spans)} windows, " if len(spans) > 1 else ""
        views = " and ".join(f"{head.clips} x {head.crops}" for head in self.model.heads)
        maps = list(self.draw_heat_maps(best))
        return [
            f"{count}{views} views, {time.monotonic() - start:.1f} s",
            *map(dict, rankings),
            gr.update(value=table, visible=len(spans) > 1),
            *[gr.update(value=text, visible=True) for text in maps],
        ]

    def check_length(self, path: str) -> None:
        with self.model.open(path) as frames:
            seconds = len(frames) / (frames.fps or DEFAULT_FPS)
        if seconds > self.max_seconds:
            limit = f"{self.max_seconds:g} s"
            raise ValueError(f"{path} has {seconds:.0f} s; this page takes at most {limit}")

    def score(
        self, path: str, progress: gr.Progress
    ) -> tuple[list[tuple[float, float]], list[list[np.ndarray]], WindowResult]:
        """The spans and probabilities of all windows, and the most confident window."""
        spans = []
        probabilities = []
        best = None
        for part in self.model.read(path, self.window):
            result = self.model.score_window(*part)
            spans.append(result.window.span)
            probabilities.append(result.probabilities)
            if best is None or result.confidence > best.confidence:
                best = result
            progress((len(spans), None), unit="windows")
        return spans, probabilities, best

    def tabulate(
        self, spans: Sequence[tuple[float, float]], probabilities: Sequence[list[np.ndarray]]
    ) -> pd.DataFrame:
        """Rows of the timeline: the middle of a window, a class, its probability."""
        names = list_columns(self.model.heads)
        values = np.stack([np.concatenate(window) for window in probabilities])
        best = np.argsort(-values.max(axis=0), kind="stable")[:TIMELINE_CLASSES]
        rows = [
            {"seconds": sum(span) / 2, "class": names[label], "probability": float(row[label])}
            for label in best
            for span, row in zip(spans, values)
        ]
        return pd.DataFrame(rows)

    def draw_heat_maps(self, result: WindowResult) -> Iterator[str]:
        """The heat map of each data set as HTML with the pixels inside: no file remains."""
        if self.cam is None:
            return
        for k, head in enumerate(self.model.heads):
            probabilities = result.probabilities[k]
            overlay = self.cam.overlay(result.views[k], head=k, probabilities=probabilities)
            frames = resize_to_fit(overlay.frames)
            rate = find_rate(head, result.window, frames.shape[1]) if self.reads_videos else 0.0
            name = format_class(head.name_classes()[overlay.label], overlay.label)
            caption = f"yellow: what speaks for {html.escape(name)}"
            yield f"<figure><figcaption>{caption}</figcaption>{to_html(frames, rate)}</figure>"


def to_html(frames: np.ndarray, rate: float) -> str:
    """A tag with a video of the frames (clips, T, H, W, 3), or a picture if `rate` is 0."""
    if not rate:
        data = cv2.imencode(".png", frames[0, 0, ..., ::-1])[1].tobytes()
        return f'<img width="100%" src="data:image/png;base64,{base64.b64encode(data).decode()}">'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "heat_map.mp4"
        write_clips(path, frames, rate)
        data = path.read_bytes()
    source = f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
    return f'<video width="100%" autoplay loop muted playsinline src="{source}"></video>'


def build_page(
    panels: Sequence[Panel], examples: Sequence[tuple[str, str]], max_mb: int
) -> gr.Blocks:
    """The page. `examples` are the names and paths of videos on this machine."""
    is_video = panels[0].reads_videos
    action = "Upload or record a video" if is_video else "Upload or take an image"
    action += ", or choose an example" if examples else ""
    length = f" and {panels[0].max_seconds:g} s" if is_video else ""
    limits = f"At most {max_mb} MB{length}; deleted after {KEEP // 60} minutes."
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(KEEP // 10, KEEP)) as page:
        gr.Markdown(f"# {TITLE}\n\n{action}. The {TOP} most probable classes appear as bars.")
        with gr.Row():
            with gr.Column(min_width=COLUMN):
                source = build_source(is_video)
                if examples:
                    gr.Examples(
                        [[path] for _, path in examples],
                        inputs=source,
                        example_labels=[name for name, _ in examples],
                        cache_examples=False,
                    )
                gr.Markdown(limits)
            for panel in panels:
                with gr.Column(min_width=COLUMN):
                    panel.build()
        for panel in panels:
            source.change(
                panel.show,
                inputs=source,
                outputs=panel.components,
                api_name=panel.name,
                concurrency_limit=1,
                concurrency_id="models",
            )
    return page


def build_source(is_video: bool) -> gr.Component:
    """What a visitor sends; Gradio passes on the file as it is."""
    camera = gr.WebcamOptions(mirror=False, constraints=CAMERA)  # left stays left
    sources = ["upload", "webcam"]
    if is_video:
        return gr.Video(label="video", sources=sources, webcam_options=camera)
    options = {"type": "filepath", "image_mode": None, "webcam_options": camera}
    return gr.Image(label="image", sources=sources, **options)


def launch(page: gr.Blocks, host: str, port: int, max_mb: int) -> str:
    """Serves the page from other threads, until `page.close()`; returns its address."""
    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        max_file_size=max_mb * 2**20,
        theme=gr.themes.Default(**FONTS),
        footer_links=[],
        run_history=False,
        ssr_mode=False,
    )
    return address
