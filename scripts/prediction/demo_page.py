"""The demo page of scripts/demo.py, by Gradio: the results of a network for an upload.

Best classes, a table of the windows, and heat maps. One prediction runs at a time, because heat
maps are for one thread.
"""

import base64
import contextlib
import html
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlsplit

import cv2
import gradio as gr
import numpy as np
from gradio.route_utils import FnIndexInferError
from gradio.utils import get_upload_folder
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from scripts.prediction.plots import format_class, resize_to_fit
from utils.messages import format_line, print_line
from utils.predict.cam import GradCam, find_rate, write_clips
from utils.predict.model import Model
from utils.predict.prediction import Prediction, WindowResult
from utils.video.reader import DEFAULT_FPS

TOP = 5
KEEP = 600  # seconds until an upload is deleted
MAX_UPLOADS = 10  # of the largest size, at one time
# Fonts of the visitor's system: Gradio's own are loaded from another server.
FONTS = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
TITLE = "MindSpore video zoo"
LOCAL = ("127.0.0.1", "localhost")
WRONG_CALLS = (FnIndexInferError, LookupError, TypeError)  # unknown names, missing arguments
COLUMNS = ["start", "end", "class", "probability"]


class Predictor:
    """What the page calls. A video longer than `max_seconds` is refused.

    Windows of `window` seconds are those of `Model.predict`.
    """

    def __init__(
        self, model: Model, max_seconds: float, window: Optional[float] = None, cam: bool = False
    ):
        self.model = model
        self.max_seconds = max_seconds
        self.window = window
        self.cam = GradCam(model) if cam else None
        self.reads_videos = bool(model.network.list_annotation_files(model.cfg))

    def predict(self, path: Optional[str]) -> list:
        """[bars of each data set, rows of the windows, HTML of the heat maps] of an upload."""
        if not path:
            return [*[None] * len(self.model.heads), gr.update(visible=False), ""]
        try:
            self.check_length(path)
            prediction, best = self.model.score_windows(self.model.read(path, self.window), TOP)
        except ValueError as error:
            line = format_line(str(error).replace(path, Path(path).name))
            raise gr.Error(line, print_exception=False) from None
        rankings = list_rankings(prediction, TOP)
        rows = [
            [round(start, 2), round(end, 2), name, round(probability, 4)]
            for number, (start, end) in enumerate(prediction.windows.tolist())
            for ((name, probability),) in list_rankings(prediction.select(number), 1)
        ]
        table = gr.update(value=rows, visible=len(prediction.windows) > 1)
        bars = [{show_class(*pair): pair[1] for pair in ranking} for ranking in rankings]
        return [*bars, table, "".join(self.draw_heat_maps(best))]

    def check_length(self, path: str) -> None:
        with self.model.open(path) as frames:
            seconds = len(frames) / (frames.fps or DEFAULT_FPS)
        if seconds > self.max_seconds:
            limit = f"{self.max_seconds:g} s"
            raise ValueError(f"{path} has {seconds:.0f} s; this page takes at most {limit}")

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


def show_class(name: str, probability: float) -> str:
    """A name for Gradio's label, which shows whole percents: below one, with the probability."""
    return name if probability >= 0.01 else f"{name} ({probability:.2g})"


def list_rankings(prediction: Prediction, count: int) -> list:
    """`count` names and probabilities for each data set."""
    top = prediction.top(count)
    return list(top.values()) if isinstance(top, dict) else [top]


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


def print_failure(error: Exception) -> str:
    """Prints a failed call as one line, and returns it."""
    line = format_line(f"a call failed: {type(error).__name__}: {error}")
    print_line(line)
    return line


def refuse(request: Any, error: Exception) -> PlainTextResponse:
    """The answer to a wrong call."""
    return PlainTextResponse(print_failure(error), 400)


class Page(gr.Blocks):
    """Blocks that print a failed call as one line."""

    async def process_api(self, *values: Any, **options: Any) -> dict[str, Any]:
        try:
            return await super().process_api(*values, **options)
        except gr.Error:
            raise
        except Exception as error:  # noqa: BLE001 of Gradio's checks, or a bug
            raise gr.Error(print_failure(error), print_exception=False) from None


class Uploads:
    """The uploads in a folder: at most `max_bytes` in sum, for KEEP seconds."""

    def __init__(self, folder: Path, max_bytes: int):
        self.folder = folder
        self.max_bytes = max_bytes
        self.pending = 0  # bytes that requests announced and have not sent yet
        self.kept = set(folder.rglob("*"))  # the examples

    def delete_old(self) -> int:
        """Deletes old files, also those that Gradio does not know; returns the bytes that stay."""
        total = 0
        for path in [*self.folder.rglob("*")]:
            with contextlib.suppress(FileNotFoundError):  # Gradio has moved or deleted it
                status = path.stat()
                if not stat.S_ISREG(status.st_mode) or path in self.kept:
                    continue
                if time.time() - status.st_mtime > KEEP:
                    path.unlink()
                else:
                    total += status.st_size
        return total

    def delete_repeatedly(self) -> None:
        while True:
            time.sleep(KEEP / 10)
            self.delete_old()


class UploadGuard:
    """Refuses an upload above the limit of `uploads`, and one that another server's page sends."""

    def __init__(self, app: ASGIApp, uploads: Uploads):
        self.app = app
        self.uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].rstrip("/").endswith("/upload"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        uploads = self.uploads
        size = int(headers.get("content-length", uploads.max_bytes + 1))
        if urlsplit(headers.get("origin", "")).netloc not in ("", headers.get("host")):
            await PlainTextResponse("another page sent this", 403)(scope, receive, send)
        elif uploads.delete_old() + uploads.pending + size > uploads.max_bytes:
            text = f"too many uploads; they are deleted after {KEEP // 60} minutes"
            await PlainTextResponse(text, 413)(scope, receive, send)
        else:
            uploads.pending += size
            try:
                await self.app(scope, receive, send)
            finally:
                uploads.pending -= size


def build_page(predictor: Predictor, examples: Sequence[str], max_mb: int) -> gr.Blocks:
    """The page; `examples` are paths of this machine."""
    length = f" and {predictor.max_seconds:g} s" if predictor.reads_videos else ""
    limits = f"At most {max_mb} MB{length}; deleted after {KEEP // 60} minutes."
    with Page(title=TITLE, analytics_enabled=False, delete_cache=(KEEP // 10, KEEP)) as page:
        gr.Markdown(f"# {TITLE}\n\nUpload a file: the {TOP} most probable classes appear. {limits}")
        with gr.Row():
            with gr.Column():
                if predictor.reads_videos:
                    source = gr.Video(label="video", sources=["upload"])
                else:
                    options = {"sources": ["upload"], "type": "filepath", "image_mode": None}
                    source = gr.Image(label="image", **options)
                if examples:
                    names = [f"{Path(file).parent.name}/{Path(file).stem}" for file in examples]
                    files = [[file] for file in examples]
                    gr.Examples(files, source, example_labels=names, cache_examples=False)
            with gr.Column():
                names = [head.name or "classes" for head in predictor.model.heads]
                bars = [gr.Label(label=name, num_top_classes=TOP) for name in names]
                table = gr.Dataframe(headers=COLUMNS, label="windows", visible=False)
                maps = gr.HTML(label="heat maps")
        source.change(
            predictor.predict,
            inputs=source,
            outputs=[*bars, table, maps],
            api_name="predict",
            concurrency_limit=1,
        )
    return page


def launch(page: gr.Blocks, host: str, port: int, max_mb: int) -> str:
    """Serves the page from other threads, until `page.close()`; returns its address."""
    hosts = [*LOCAL] if host in LOCAL else ["*"]
    uploads = Uploads(Path(get_upload_folder()), MAX_UPLOADS * max_mb * 2**20)
    threading.Thread(target=uploads.delete_repeatedly, daemon=True).start()
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
        css="video { object-fit: contain !important; }",  # the whole frame, as in the heat map
        app_kwargs={
            # A page of another server that gives its name our address is refused.
            "middleware": [
                Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
                Middleware(UploadGuard, uploads=uploads),
            ],
            "exception_handlers": dict.fromkeys(WRONG_CALLS, refuse),
        },
    )
    return address
