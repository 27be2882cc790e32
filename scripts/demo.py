#!/usr/bin/env python3
"""Opens a page in the browser that predicts the classes of videos, for resnet50 of images.

    python scripts/demo.py --checkpoint_path C [--config_path Y] [--labels FILE] [--network NAME]
        [--section.key=value ...] [--examples FOLDER] [--cam] [--window SECONDS]
        [--host 127.0.0.1] [--port 7860] [--max_mb 100] [--max_seconds 300]

A visitor uploads a video or chooses one of 8 examples, taken evenly from FOLDER. The page shows the
5 best classes and, of a video above 30 seconds or with --window, those of every window. --cam also
draws heat maps, which need a checkpoint. Checkpoints of the zoo and names of published weights need
no --config_path.

Only this machine can open the page, by the name 127.0.0.1 or localhost; --host 0.0.0.0 opens it to
the network. Uploads are limited by --max_mb and --max_seconds; they are deleted after 10 minutes
and at the end. Ctrl-C ends the page. It needs Gradio, which is not installed with the zoo. Docs:
docs/demo.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import base64
import html
import io
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated, Any, Optional

from PIL import Image

from scripts.prediction.plots import format_class, resize_to_fit
from scripts.prediction.records import list_videos
from utils import cli, signals
from utils.inference import model as api
from utils.inference.prediction import WindowResult
from utils.load_config import list_settings
from utils.messages import format_line, print_line
from utils.networks import find_network, list_networks
from utils.video.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from utils.video.reader import DEFAULT_FPS

# Without numpy<2, pip takes a newer NumPy for Gradio, which MindSpore cannot use.
INSTALL = "pip install 'gradio>=6.31,<7' 'numpy<2'"
EXAMPLES = 8
TOP = 5
KEEP = 600  # seconds until an upload is deleted
LOCAL = ("127.0.0.1", "localhost")
PORT = 7860
Port = Annotated[int, cli.number_between(1, 2**16 - 1)]


def main(
    settings: Sequence[str],
    *,
    checkpoint_path: str,
    config_path: str = "",
    labels: str = "",
    network: str = "",
    examples: str = "",
    cam: bool = False,
    window: Optional[cli.NonNegativeFloat] = None,
    host: str = "127.0.0.1",
    port: Port = PORT,
    max_mb: cli.PositiveInt = 100,
    max_seconds: cli.NonNegativeFloat = 300.0,
) -> None:
    if find_spec("gradio") is None:
        raise ValueError(f"the page needs Gradio: {INSTALL}")
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise ValueError(f"--host {host} --port {port}: {error}; choose others") from None
    names = (config_path, checkpoint_path) if config_path else (checkpoint_path,)
    model = api.load(*names, settings=settings, labels=labels, network=network)
    predictor = Predictor(model, max_seconds, window, cam)
    suffixes = IMAGE_SUFFIXES if model.network.reads_images else VIDEO_SUFFIXES
    files = list_videos([examples], suffixes) if examples else []
    chosen = [files[k * len(files) // EXAMPLES] for k in range(EXAMPLES)] if files else []
    with tempfile.TemporaryDirectory(prefix="zoo_demo_") as folder:
        signals.unfinished.add(folder)  # of uploads: a signal deletes it
        os.environ["GRADIO_TEMP_DIR"] = folder  # read when Gradio is imported
        _, address = open_page(predictor, [*dict.fromkeys(chosen)], host, port, max_mb)
        if host not in LOCAL:
            print_line(f"warning: --host {host}: whoever reaches this machine can use the page")
        print_line(f"open {address} in a browser; ctrl-C ends the page")
        while True:
            time.sleep(KEEP)


class Predictor:
    """What the page calls. A video longer than `max_seconds` is refused.

    Windows of `window` seconds as in `Model.predict`.
    """

    def __init__(
        self,
        model: api.Model,
        max_seconds: float,
        window: Optional[float] = None,
        cam: bool = False,
    ):
        self.model = model
        self.max_seconds = max_seconds
        self.window = window
        self.cam = None
        if cam:
            from utils.inference.cam import GradCam

            self.cam = GradCam(model.load_cell(), model.heads)

    def predict(self, path: Optional[str]) -> list:
        """[bars of each data set, rows of the windows, HTML of the heat maps] of an upload."""
        import gradio as gr

        if not path:
            return [*[None] * len(self.model.heads), gr.update(visible=False), ""]
        try:
            with self.model.open(path) as frames:
                seconds = len(frames) / (frames.fps or DEFAULT_FPS)
            if seconds > self.max_seconds:
                limit = f"{self.max_seconds:g} s"
                raise ValueError(f"{path} has {seconds:.0f} s; this page takes at most {limit}")
            prediction, best = self.model.score_windows(self.model.read(path, self.window), TOP)
        except ValueError as error:
            line = format_line(str(error).replace(path, Path(path).name))
            raise gr.Error(line, print_exception=False) from None
        top = prediction.top(TOP)
        rankings = [top] if len(self.model.heads) == 1 else list(top.values())
        # Gradio shows whole percents: a smaller probability becomes part of the name
        bars = [{n if p >= 0.01 else f"{n} ({p:.2g})": p for n, p in pairs} for pairs in rankings]
        rows = []
        for number, (start, end) in enumerate(prediction.windows.round(2).tolist()):
            for entry, *_ in prediction.select(number).rank(1):
                name = entry["name"] or str(entry["label"])
                rows.append([start, end, name, round(entry["probability"], 4)])
        table = gr.update(value=rows, visible=len(prediction.windows) > 1)
        return [*bars, table, self.draw_heat_maps(best) if self.cam else ""]

    def draw_heat_maps(self, result: WindowResult) -> str:
        """The heat map of each data set as a picture that moves, in HTML: no file remains."""
        from utils.inference.cam import find_rate

        figures = []
        for k, head in enumerate(self.model.heads):
            frames, label = self.cam.overlay(result.views[k], k, result.probabilities[k])
            frames = resize_to_fit(frames)
            first, *others = map(Image.fromarray, frames.reshape(-1, *frames.shape[2:]))
            data = io.BytesIO()
            milliseconds = round(1000 / find_rate(head, result.window, frames.shape[1]))
            options = {"append_images": others, "duration": milliseconds, "loop": 0}
            first.save(data, "WEBP", save_all=True, **options)
            source = f"data:image/webp;base64,{base64.b64encode(data.getvalue()).decode()}"
            name = format_class(head.name_classes()[label], label)
            caption = f"yellow: what speaks for {html.escape(name)}"
            picture = f'<img width="100%" src="{source}">'
            figures.append(f"<figure><figcaption>{caption}</figcaption>{picture}</figure>")
        return "".join(figures)


def open_page(
    predictor: Predictor, examples: Sequence[str], host: str, port: int, max_mb: int
) -> tuple[Any, str]:
    """Serves the page from other threads; returns it and its address.

    One prediction runs at a time, because heat maps are for one thread.
    """
    import gradio as gr
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    model = predictor.model
    source = gr.Video(label="video", sources=["upload"])
    length = f" and {predictor.max_seconds:g} s"
    if model.network.reads_images:
        source = gr.Image(label="image", sources=["upload"], type="filepath", image_mode=None)
        length = ""
    limits = f"At most {max_mb} MB{length}; deleted after {KEEP // 60} minutes."
    columns = ["start", "end", "class", "probability"]
    page = gr.Interface(
        predictor.predict,
        inputs=source,
        outputs=[
            *(gr.Label(label=head.name or "classes", num_top_classes=TOP) for head in model.heads),
            gr.Dataframe(headers=columns, label="windows", visible=False),
            gr.HTML(label="heat maps"),
        ],
        examples=[[file] for file in examples] or None,
        example_labels=[f"{Path(file).parent.name}/{Path(file).stem}" for file in examples] or None,
        cache_examples=False,
        live=True,
        title="MindSpore video zoo",
        description=f"Upload a file: the {TOP} most probable classes appear. {limits}",
        flagging_mode="never",
        analytics_enabled=False,
        concurrency_limit=1,
        api_name="predict",
        delete_cache=(KEEP // 10, KEEP),  # uploads; examples stay
    )
    # A page of another server that gives its name our address is refused.
    hosts = [*LOCAL] if host in LOCAL else ["*"]
    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        max_file_size=max_mb * 2**20,
        # Fonts of the visitor's system: Gradio's own are loaded from another server.
        theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace"]),
        ssr_mode=False,
        css="video { object-fit: contain !important; }",  # the whole frame, as in the heat map
        app_kwargs={"middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=hosts)]},
    )
    return page, address


if __name__ == "__main__":
    configs = [find_network(name).config for name in list_networks()]
    names = sorted({name for config in configs for name in list_settings(config)})
    cli.run_command(main, __doc__, settings=names)
